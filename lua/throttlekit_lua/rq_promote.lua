--[[
  Put due jobs from a queue's scheduled jobs into the queue, unless one of RQ's schedulers does it.

  KEYS[1]    the lock that RQ's scheduler holds for the queue
  KEYS[2]    the queue's scheduled jobs: sorted set by the instant to come back, seconds since the epoch
  KEYS[3]    the queue: list
  KEYS[3+i]  job i: hash

  ARGV[1]    now, as RQ writes instants: text
  ARGV[2]    "", or the name of a lane: then only the jobs that wait in it are put into the queue, due or not
  ARGV[2+i]  job i: its id; in the order in which they are due

  Returns    how many were put into the queue

  Writes     KEYS[2] loses them. KEYS[3] gets them: jobs that the user scheduled at its end, or front if they ask
             for it, as RQ's scheduler does, up to the first that a limit denied, which goes to the front. Only one of
             these, because the worker that promotes takes it at once: more would stand before jobs that come due later.
             KEYS[3+i] gets its new status, and a mark if it comes before it is due; if the user scheduled it, its ttl.
             A job with RQ's own limit takes a slot of it, or goes to those that wait for one, in RQ's own keys: the
             set rq:rl-keys, the hash rq:rl:<key>, the sorted sets rq:rl:<key>:allowed and rq:rl:<key>:rate_limited.
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end

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

local count = 0
for i = 1, #ARGV - 2 do
  local id, lane = ARGV[2 + i], ARGV[2]
  local due = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
  local carried = due and redis.call('HGET', KEYS[3 + i], 'throttlekit')
  local early = lane ~= '' and carried and string.find(carried, '"' .. lane .. '"', 1, true)
  if lane ~= '' then due = early and 0 end
  if due and due <= now then
    redis.call('ZREM', KEYS[2], id)
    local job = redis.call('HMGET', KEYS[3 + i], 'status', 'enqueue_at_front', 'ttl', 'enqueue_at_front_on_retry',
      'ended_at')
    if job[1] and job[1] ~= 'canceled' and not waits_for_rq(KEYS[3 + i], id) then
      redis.call('HSET', KEYS[3 + i], 'status', 'queued', 'enqueued_at', ARGV[1])
      count = count + 1
      if early then redis.call('HSET', KEYS[3 + i], 'throttlekit_early', '1') end
      if carried then
        redis.call('LPUSH', KEYS[3], id)
        return count
      end
      if tonumber(job[3] or nil) then redis.call('EXPIRE', KEYS[3 + i], job[3]) end
      local front = job[2] == '1' or (job[4] == '1' and job[5] and job[5] ~= '')
      if front then redis.call('LPUSH', KEYS[3], id) else redis.call('RPUSH', KEYS[3], id) end
    end
  end
end
return count
