--[[
  Return a denied job to its queue's scheduled jobs, or to the end of its queue if no process promotes scheduled jobs.

  KEYS[1]  the job: hash
  KEYS[2]  its queue's scheduled jobs: sorted set by the time to return, seconds since the epoch
  KEYS[3]  its queue's intermediate list
  KEYS[4]  its queue: list
  KEYS[5]  the keys of all queues: set
  KEYS[6]  the worker: hash

  ARGV[1]  the job's id
  ARGV[2]  the delay, microseconds; "" to put the job at the end of its queue
  ARGV[3]  the record that the job carries until its next request: text
  ARGV[4]  "1" if the worker has counted this denial as a failed job, and the script corrects the count; otherwise "0"
  ARGV[5]  the time at which the job expires, milliseconds; "" if it has no ttl
  ARGV[6]  "1" if RQ's scheduler enqueues it again, otherwise "0". Once a second, the scheduler pushes all due jobs to
           the front of the queue, one after the other, which reverses their order. So the script mirrors the times
           within each second: 7.2 s becomes 7.8 s. The jobs then run in the right order.
  ARGV[7]  the job's new meta, serialized, which shows the limit that it waits for; "" to keep its meta

  Returns  1 if the job was put back, 0 if it no longer exists, -1 if it was cancelled

  Writes   KEYS[3] loses the job. KEYS[6] counts one failure less. KEYS[1] gets the new status, the record, and its old
           expiry: a denial does not prolong a job's ttl. KEYS[2] or KEYS[4] gets the job. If KEYS[2] does, KEYS[5]
           gets the queue. If the job was deleted or cancelled, KEYS[1] is not changed.
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

redis.call('LREM', KEYS[3], 1, ARGV[1])
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[6]) == 1 then
  redis.call('HINCRBY', KEYS[6], 'failed_job_count', '-1')
end
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return 0 end
if status == 'canceled' or status == 'stopped' then return -1 end

if ARGV[5] ~= '' then
  redis.call('HSET', KEYS[1], 'throttlekit_expires', ARGV[5])
  redis.call('PEXPIREAT', KEYS[1], ARGV[5])
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
end

redis.call('HSET', KEYS[1], 'throttlekit', ARGV[3], 'enqueue_at_front', '1', 'started_at', '', 'worker_name', '')
if ARGV[7] ~= '' then redis.call('HSET', KEYS[1], 'meta', ARGV[7]) end

if ARGV[2] == '' then
  redis.call('HSET', KEYS[1], 'status', 'queued')
  redis.call('RPUSH', KEYS[4], ARGV[1])
else
  redis.call('HSET', KEYS[1], 'status', 'scheduled')
  redis.call('SADD', KEYS[5], KEYS[4])
  local due = (now + tonumber(ARGV[2])) / 1000000
  if ARGV[6] == '1' then due = math.ceil(due) + math.floor(due) - due end
  redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[1])
end
return 1
