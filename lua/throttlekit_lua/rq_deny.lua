--[[
  Put a denied job back: among its queue's scheduled jobs, or at the end of its queue if no process takes those out.

  KEYS[1]  the job: hash
  KEYS[2]  its queue's scheduled jobs: sorted set by the time to return, seconds since the epoch
  KEYS[3]  its queue's intermediate list
  KEYS[4]  its queue: list
  KEYS[5]  the keys of all queues: set
  KEYS[6]  the worker: hash

  ARGV[1]  the job's id
  ARGV[2]  delay, microseconds; "" puts it at the end of its queue
  ARGV[3]  the record that the job carries until its next request: text
  ARGV[4]  "1" if the worker counts this denial as a failed job, which is undone here; else "0"
  ARGV[5]  when the job expires, milliseconds, if an earlier denial noted it; else ""
  ARGV[6]  when it was enqueued, milliseconds; else ""
  ARGV[7]  "1" if RQ's scheduler returns it, else "0". The scheduler takes all jobs that are due by a whole second
           at once, and puts one after the other at the front of the queue, which reverses them. So the times within
           a second are mirrored here, and the jobs come out in order.
  ARGV[8]  its meta, as its serializer writes it, with what it waits for; "" leaves it as it is

  Returns  1 put back, 0 the job is gone, -1 it was cancelled

  Writes   KEYS[3] loses the job. KEYS[6] loses a failure. KEYS[1] gets its new status, what it carries, and
           its old expiry: a denial does not prolong a job's ttl. KEYS[2] or KEYS[4] gets the job; with
           KEYS[2], KEYS[5] gets the queue. KEYS[1] of a job that is gone or cancelled is left alone.
]]
local function whole(x) return string.format('%.0f', x) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

redis.call('LREM', KEYS[3], 1, ARGV[1])
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[6]) == 1 then
  redis.call('HINCRBY', KEYS[6], 'failed_job_count', '-1')
end
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return 0 end
if status == 'canceled' or status == 'stopped' then return -1 end

local ttl = tonumber(redis.call('HGET', KEYS[1], 'ttl') or nil)
if ttl then
  local expires, now_ms = tonumber(ARGV[5]), now / 1000
  if not expires then
    -- Running a job removes its key's expiry, so its ttl may have to be counted from when it was enqueued.
    local left = redis.call('PTTL', KEYS[1])
    expires = left > 0 and now_ms + left or (tonumber(ARGV[6]) or 0) + ttl * 1000
    if expires <= now_ms or expires > now_ms + ttl * 1000 then expires = now_ms + ttl * 1000 end
  end
  redis.call('HSET', KEYS[1], 'throttlekit_expires', whole(expires))
  redis.call('PEXPIREAT', KEYS[1], whole(expires))
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
end

redis.call('HSET', KEYS[1], 'throttlekit', ARGV[3], 'enqueue_at_front', '1', 'started_at', '', 'worker_name', '')
if ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'meta', ARGV[8]) end

if ARGV[2] == '' then
  redis.call('HSET', KEYS[1], 'status', 'queued')
  redis.call('RPUSH', KEYS[4], ARGV[1])
else
  redis.call('HSET', KEYS[1], 'status', 'scheduled')
  redis.call('SADD', KEYS[5], KEYS[4])
  local due = (now + tonumber(ARGV[2])) / 1000000
  if ARGV[7] == '1' then due = math.ceil(due) + math.floor(due) - due end
  redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[1])
end
return 1
