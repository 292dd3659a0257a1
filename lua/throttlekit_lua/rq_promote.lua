--[[
  Promote scheduled jobs of one queue: move them into the queue, because they are due or because a limit woke them.

  KEYS[1]    the lock that RQ's scheduler holds for the queue
  KEYS[2]    the queue's scheduled jobs: sorted set by their due time, seconds since the epoch
  KEYS[3]    the queue: list
  KEYS[3+i]  job i: hash

  ARGV[1]    now, in RQ's format: text
  ARGV[2]    "" to promote due jobs. To promote woken jobs, due or not: the id of the job that was woken before them, or
             "-". If that job is among the first MOST of the queue, the woken jobs go directly behind it, otherwise to
             the front of the queue
  ARGV[2+i]  job i: its id; the first job runs first

  Returns    the number of promoted jobs, and of jobs that will make no request: deleted, cancelled, or already started

  Writes     KEYS[2] loses the jobs, KEYS[3] gets them. KEYS[3+i] gets its status; if the user scheduled it, its ttl.
             A due job that the user scheduled goes to the end of the queue, or to its front if its options say so, as
             with RQ's scheduler. A due job that a limit denied goes to the front, and ends the call: the caller, a
             worker, runs it next.
             If one of RQ's schedulers has the queue's lock, the script leaves due jobs to it, and also woken jobs that
             are due within SOON seconds: the scheduler may be about to enqueue these jobs too.
             A job with RQ's own limit takes a slot of it, or is added to the jobs that wait for one. RQ's keys for it:
             the set rq:rl-keys, the hash rq:rl:<key>, the sorted sets rq:rl:<key>:allowed and …:rate_limited.
]]
local SOON, MOST = 2, 64
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local woken, has_scheduler = ARGV[2] ~= '', redis.call('EXISTS', KEYS[1]) == 1
if has_scheduler and not woken then return {0, 0} end

-- Takes a slot of RQ's own limit, `rate_limit=`, for a job. Returns true if the job has to wait for one.
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
  if woken then i = #ARGV - 1 - i end -- each job is put before the last one
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
