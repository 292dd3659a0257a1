--[[
  Wake parked jobs of one line: their messages go to the front of a queue of the broker.

  KEYS[1]    the parked jobs of the line: sorted set of "number id", by their start
  KEYS[2]    the lines of the queue in which parked jobs stand: sorted set by when to look at them, seconds
  KEYS[3]    the limits' names: hash by line
  KEYS[4]    the parked jobs that end if they wait for too long: sorted set of "line number id"
  KEYS[5]    messages, the parked ones among them: hash by id
  KEYS[6+i]  where woken jobs go: list

  ARGV[1]    the line
  ARGV[2]    so many are woken, the first ones
  ARGV[3]    in how many seconds to look at the line again; "" leaves that as it is
  ARGV[4]    "1": the lists have messages, and are taken from the right; each message says by its first digit to which
             list it goes, and goes to the last one if there are fewer by now. "0": the list has ids, and is taken from
             the left; the messages stay where they are
  ARGV[3+2i]  job i that is woken in any case, as in KEYS[1]
  ARGV[4+2i]  job i's message from now on; "" leaves it as it is

  Returns    how many were woken, and how many are still parked in the line

  Writes     KEYS[1] and KEYS[4] lose the jobs, also those without a message: they were purged. KEYS[5] loses the
             messages that move, and gets those that change. KEYS[6+i] gets what is woken. KEYS[2] gets when to look
             again; it and KEYS[3] lose a line without jobs.
]]
local moves, found, at = ARGV[4] == '1', {}, 0
local told = {}
for i = 1, (#ARGV - 4) / 2 do
  if redis.call('ZREM', KEYS[1], ARGV[3 + 2 * i]) == 1 then
    found[#found + 1] = ARGV[3 + 2 * i]
    if ARGV[4 + 2 * i] ~= '' then told[ARGV[3 + 2 * i]] = ARGV[4 + 2 * i] end
  end
end
local popped = tonumber(ARGV[2]) > 0 and redis.call('ZPOPMIN', KEYS[1], ARGV[2]) or {}
for i = 1, #popped, 2 do found[#found + 1] = popped[i] end
local ends, woken = redis.call('EXISTS', KEYS[4]) == 1, 0
for i = #found, 1, -1 do
  local note, id = ARGV[1] .. ' ' .. found[i], string.sub(found[i], 18)
  if ends then redis.call('ZREM', KEYS[4], note) end
  if moves then
    local message = redis.call('HGET', KEYS[5], id)
    if message then
      at = math.min(tonumber(string.sub(message, 1, 1)) or 0, #KEYS - 6)
      local job = string.sub(told[found[i]] or message, 2)
      redis.call('RPUSH', KEYS[6 + at], job)
      redis.call('HDEL', KEYS[5], id)
      woken = woken + 1
    end
  elseif redis.call('HEXISTS', KEYS[5], id) == 1 then
    local job = told[found[i]]
    if job then redis.call('HSET', KEYS[5], id, job) end
    redis.call('LPUSH', KEYS[6 + at], id)
    woken = woken + 1
  end
end
local left = redis.call('ZCARD', KEYS[1])
if left == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('HDEL', KEYS[3], ARGV[1])
elseif ARGV[3] ~= '' then
  local time = redis.call('TIME')
  local next_at = tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(ARGV[3])
  redis.call('ZADD', KEYS[2], string.format('%.6f', next_at), ARGV[1])
end
return {woken, left}
