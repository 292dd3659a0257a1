--[[
  Put jobs of one queue from its scheduled jobs to the front of the queue: a limit has room for them, or their worker
  stops.

  KEYS[1]    the lock that RQ's scheduler holds for the queue
  KEYS[2]    the queue's scheduled jobs: sorted set by the time to come back, seconds since the epoch
  KEYS[3]    the queue: list
  KEYS[3+i]  job i: hash

  ARGV[1]    now, as RQ writes times: text
  ARGV[1+i]  job i: its id; the first one is to run first

  Returns    how many were put into the queue, and how many nobody will ask for: they are gone, cancelled, or have begun

  Writes     KEYS[2] loses the jobs, KEYS[3] gets them, KEYS[3+i] gets its new status. A job that is not scheduled any
             more is left alone, and so is one that is due within SOON seconds if one of RQ's schedulers has the queue:
             the scheduler may be about to enqueue it, and does not look whether somebody else has.
             A job with RQ's own limit takes a slot of it, or goes to those that wait for one, in RQ's own keys: the
             set rq:rl-keys, the hash rq:rl:<key>, the sorted sets rq:rl:<key>:allowed and rq:rl:<key>:rate_limited.
]]
local SOON = 2
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local from = redis.call('EXISTS', KEYS[1]) == 1 and now + SOON or 0

-- RQ's own limit, `rate_limit=`: a job that comes back needs a slot of it again, and may have to wait for it.
local function waits_for_rq(key, id)
  local own = redis.call('HMGET', key, 'rate_limit_key', 'rate_limit_concurrency')
  local most = own[1] and own[1] ~= '' and tonumber(own[2] or nil)
  if not most then return false end
  local rq, at = string.match(KEYS[1], '^(.-):scheduler%-lock:'), string.format('%.6f', now)
  local limit = rq .. ':rl:' .. own[1]
  redis.call('SADD', rq .. ':rl-keys', own[1])
  redis.call('HSET', limit, 'concurrency', own[2])
  if redis.call('ZSCORE', limit .. ':allowed', id) then return false end
  if redis.call('ZCARD', limit .. ':rate_limited') == 0 and redis.call('ZCARD', limit .. ':allowed') < most then
    redis.call('ZADD', limit .. ':allowed', at, id)
    return false
  end
  redis.call('ZADD', limit .. ':rate_limited', at, id)
  redis.call('HSET', key, 'status', 'rate_limited')
  return true
end

local count, gone = 0, 0
for i = #ARGV - 1, 1, -1 do
  local key, id = KEYS[3 + i], ARGV[1 + i]
  local status, due = redis.call('HGET', key, 'status'), tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
  if status ~= 'scheduled' and status ~= 'queued' and status ~= 'rate_limited' then
    gone = gone + 1
    if not status then redis.call('ZREM', KEYS[2], id) end
  elseif due and due >= from then
    redis.call('ZREM', KEYS[2], id)
    if not waits_for_rq(key, id) then
      redis.call('HSET', key, 'status', 'queued', 'enqueued_at', ARGV[1])
      redis.call('LPUSH', KEYS[3], id)
      count = count + 1
    end
  end
end
return {count, gone}
