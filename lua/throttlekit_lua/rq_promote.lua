--[[
  Put scheduled jobs of one queue into the queue: those that are due, or those that a limit has woken.

  KEYS[1]    the lock that RQ's scheduler holds for the queue
  KEYS[2]    the queue's scheduled jobs: sorted set by the time to return, seconds since the epoch
  KEYS[3]    the queue: list
  KEYS[3+i]  job i: hash

  ARGV[1]    now, as RQ writes times: text
  ARGV[2]    "" if only jobs that are due go into the queue. Otherwise the jobs were woken, and go to its front, due or
             not: the id of the job that was woken before them, or "-". If that is among the first MOST of the queue, they
             go behind it
  ARGV[2+i]  job i: its id; the first one is to run first

  Returns    how many were put into the queue, and how many will make no request: they are gone, cancelled, or have begun

  Writes     KEYS[2] loses them. KEYS[3] gets them. Of those that are due: jobs that the user scheduled, at its end, or at
             its front if they ask for it, as with RQ's scheduler; and one that a limit denied, at its front, and no job
             after that: the worker that promotes takes it at once.
             KEYS[3+i] gets its new status; if the user scheduled it, its ttl.
             If one of RQ's schedulers has the queue, due jobs are left to it, and so are woken jobs that are due within
             SOON seconds: the scheduler may be about to enqueue them, and does not look whether somebody else has.
             A job with RQ's own limit takes a slot of it, or goes to those that wait for one, in RQ's own keys: the
             set rq:rl-keys, the hash rq:rl:<key>, the sorted sets rq:rl:<key>:allowed and rq:rl:<key>:rate_limited.
]]
local SOON, MOST = 2, 64
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local woken, has_scheduler = ARGV[2] ~= '', redis.call('EXISTS', KEYS[1]) == 1
if has_scheduler and not woken then return {0, 0} end

-- RQ's own limit, `rate_limit=`: a job that returns needs a slot of it again, and may have to wait for it.
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

local before = false
if woken then
  for _, id in ipairs(redis.call('LRANGE', KEYS[3], '0', string.format('%.0f', MOST - 1))) do
    before = before or id == ARGV[2]
  end
end
local count, gone = 0, 0

local function put_in(i, front)
  local id = ARGV[2 + i]
  redis.call('ZREM', KEYS[2], id)
  if waits_for_rq(KEYS[3 + i], id) then return false end
  redis.call('HSET', KEYS[3 + i], 'status', 'queued', 'enqueued_at', ARGV[1])
  if before then redis.call('LINSERT', KEYS[3], 'AFTER', ARGV[2], id)
  elseif front then redis.call('LPUSH', KEYS[3], id)
  else redis.call('RPUSH', KEYS[3], id) end
  count = count + 1
  return true
end

for i = 1, #ARGV - 2 do
  if woken then i = #ARGV - 1 - i end -- each goes before the last one
  local id = ARGV[2 + i]
  local due = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
  local job = redis.call('HMGET', KEYS[3 + i],
    'status', 'throttlekit', 'enqueue_at_front', 'ttl', 'enqueue_at_front_on_retry', 'ended_at')
  if not job[1] or job[1] == 'canceled' then
    redis.call('ZREM', KEYS[2], id)
    gone = gone + 1
  elseif woken and not due and job[1] ~= 'queued' and job[1] ~= 'rate_limited' then gone = gone + 1
  elseif woken then
    if due and not (has_scheduler and due < now + SOON) then put_in(i, true) end
  elseif due and due <= now then
    if job[2] then
      put_in(i, true)
      break
    end
    local put = put_in(i, job[3] == '1' or (job[5] == '1' and job[6] and job[6] ~= ''))
    if put and tonumber(job[4] or nil) then redis.call('EXPIRE', KEYS[3 + i], job[4]) end
  end
end
return {count, gone}
