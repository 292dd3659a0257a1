--[[
  Return a job that a worker has taken, and whose body has not begun, to the front of its queue.

  KEYS[1]  the job: hash
  KEYS[2]  its queue's intermediate list
  KEYS[3]  its queue: list
  KEYS[4]  its executions: sorted set
  KEYS[5]  the executions of its queue that have begun: sorted set of "<job's id>:<execution's id>"

  ARGV[1]  the job's id
  ARGV[2]  the time at which the job was enqueued before the worker took it, in RQ's format: text; "" if it has none
  ARGV[3]  now, in RQ's format: text

  Returns  nothing

  Writes   KEYS[2] loses the job, KEYS[3] gets it, and KEYS[1] gets the new time. KEYS[4] is deleted, and KEYS[5] loses
           its executions: RQ would take them for those of a killed worker, and let the job fail. If the job has another
           status or time, nothing is written: a call whose reply was lost has put it back, and another worker may run
           it now, or it was deleted or cancelled.
]]
local job = redis.call('HMGET', KEYS[1], 'status', 'enqueued_at')
if job[1] ~= 'queued' or (job[2] or '') ~= ARGV[2] then return end
for _, execution in ipairs(redis.call('ZRANGE', KEYS[4], '0', '-1')) do
  local id = ARGV[1] .. ':' .. execution
  redis.call('ZREM', KEYS[5], id)
end
redis.call('DEL', KEYS[4])
redis.call('LREM', KEYS[2], 1, ARGV[1])
redis.call('LPUSH', KEYS[3], ARGV[1])
redis.call('HSET', KEYS[1], 'enqueued_at', ARGV[3])
