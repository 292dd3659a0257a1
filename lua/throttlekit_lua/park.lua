--[[
  Park a job that a limit denied: its message leaves its worker's hands, and waits where the broker keeps it.

  KEYS[1]  the messages that the worker has not acknowledged: set of their ids, or hash by them
  KEYS[2]  what else has the message: hash by id, or sorted set of ids; KEYS[3] if nothing has
  KEYS[3]  messages, the parked ones among them: hash by id
  KEYS[4]  the parked jobs of the line: sorted set of "number id", by shift + start
  KEYS[5]  the lines of the queue in which parked jobs stand: sorted set by when to look at them, seconds
  KEYS[6]  the epochs and shifts of the lines and the limits' names, "epoch/shift name", or "epoch name" without a shift:
           hash by line
  KEYS[7]  the parked jobs that end if they wait for too long: sorted set of "line number id" by when, seconds

  ARGV[1]  "set" or "hash": what KEYS[1] is
  ARGV[2]  the message's id there
  ARGV[3]  the message, with the ticket that the job has now
  ARGV[4]  the line
  ARGV[5]  the limit's name
  ARGV[6]  where the job stands in the line: start
  ARGV[7]  where the job stands in the line: number
  ARGV[8]  in how many seconds to look at it
  ARGV[9]  in how many seconds it ends; "" never
  ARGV[10] the line's epoch: if it is later than the stored one, the limits' store has lost the positions of all parked
           jobs. They stay first: a shift past their scores is added to the start of each job that is parked from now
           on. A score of at most the shift means that the job has lost its position
  ARGV[11] the message's id from now on: what its worker still does by the old one hits no later delivery

  Returns  1; 0 if the message is in the worker's hands no longer: then nothing was done

  Writes   KEYS[1] and KEYS[2] lose it, KEYS[3] gets it, KEYS[4] its place, KEYS[5] and KEYS[6] its line, KEYS[7] its
           end. None of them expires: they are the broker's jobs.
]]
local INTEGER = '%.0f'
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local set, old, id = ARGV[1] == 'set', ARGV[2], ARGV[11]
if redis.call(set and 'SISMEMBER' or 'HEXISTS', KEYS[1], old) == 0 then return 0 end
local job = string.format('%016.0f ', tonumber(ARGV[7])) .. id
redis.call('HSET', KEYS[3], id, ARGV[3])
local epoch, start = tonumber(ARGV[10]), tonumber(ARGV[6])
local newest, shift = string.match(redis.call('HGET', KEYS[6], ARGV[4]) or '', '^(%d+)/?(%d*)')
newest, shift = tonumber(newest) or epoch, tonumber(shift) or 0
if epoch > newest then
  local last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2]
  shift = math.max(shift, tonumber(last) or 0)
end
if epoch < newest then start, epoch = 0, newest end
redis.call('ZADD', KEYS[4], string.format(INTEGER, shift + start), job)
local at = now + tonumber(ARGV[8])
local known = tonumber(redis.call('ZSCORE', KEYS[5], ARGV[4]) or nil)
if not known or at < known then redis.call('ZADD', KEYS[5], string.format('%.6f', at), ARGV[4]) end
local shifted = shift > 0 and string.format('/' .. INTEGER, shift) or ''
redis.call('HSET', KEYS[6], ARGV[4], string.format(INTEGER, epoch) .. shifted .. ' ' .. ARGV[5])
if ARGV[9] ~= '' then
  redis.call('ZADD', KEYS[7], string.format('%.6f', now + tonumber(ARGV[9])), ARGV[4] .. ' ' .. job)
end
-- Last: a script that fails half-way, at a key of another type, leaves the message in the worker's hands.
if set then
  redis.call('SREM', KEYS[1], old)
  redis.call('HDEL', KEYS[2], old)
else
  redis.call('HDEL', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
return 1
