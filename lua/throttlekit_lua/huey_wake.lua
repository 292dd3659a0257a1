--[[
  Let the job that waits first in a line ask now.

  KEYS[1]  the waiting jobs that stand in the line: sorted set by their place
  KEYS[2]  the waiting jobs' ids: sorted set by the instant to come back, microseconds; 0 at once
  KEYS[3]  the bell at which idle workers listen: list; sorted set if the queue is one

  ARGV[1]  only if it is due in so many microseconds, or later
  ARGV[2]  "1" if the queue is a sorted set, else "0"

  Returns  1 it asks now, 0 it is due soon anyway, -1 no job stands in the line

  Writes   KEYS[1] loses the jobs before it: they have ended, or are in a worker's hands, and those that go back come in
           again. KEYS[2] has it due at once, and KEYS[3] wakes a worker.
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
for _ = 1, 1000 do
  local job = redis.call('ZRANGE', KEYS[1], '0', '0')[1]
  if not job then return -1 end
  local due = tonumber(redis.call('ZSCORE', KEYS[2], job) or nil)
  if due then
    if due < now + ARGV[1] then return 0 end
    redis.call('ZADD', KEYS[2], '0', job)
    if ARGV[2] == '1' then redis.call('ZADD', KEYS[3], '0', '1')
    elseif redis.call('LLEN', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], '1') end
    redis.call('PEXPIRE', KEYS[3], '60000')
    return 1
  end
  redis.call('ZREM', KEYS[1], job)
end
return 0
