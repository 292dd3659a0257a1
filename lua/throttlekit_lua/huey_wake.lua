--[[
  Let the job that waits first in a line ask now.

  One call removes 100 entries at most; call it again if it returns -2.

  KEYS[1]  the waiting jobs that stand in the line: sorted set by their place
  KEYS[2]  the waiting jobs' ids: sorted set by the instant to come back, microseconds; 0 at once
  KEYS[3]  the bell at which idle workers listen: list; sorted set if the queue is one
  KEYS[4]  huey's schedule: sorted set
  KEYS[5]  the waiting jobs by their ids, "<priority> <base> <line> <job>": hash

  ARGV[1]  only if it is due in so many microseconds, or later
  ARGV[2]  "1" if the queue is a sorted set, else "0"

  Returns  1 it asks now; 0 it is due soon anyway; -1 no job waits in the line; -2 only entries of jobs that are gone
           were found, and there are more entries

  Writes   KEYS[1] loses the entries before the first job: jobs that have ended, or that a worker has, which are added
           again if they are denied; and jobs that were flushed from huey's schedule, which KEYS[2] and KEYS[5] lose as
           well. KEYS[2] has the first job due at once, and KEYS[3] wakes a worker.
]]
local MOST = 100
local time = redis.call('TIME')
local now, least, sorted = tonumber(time[1]) * 1000000 + tonumber(time[2]), tonumber(ARGV[1]), ARGV[2] == '1'

for _ = 1, MOST do
  local id = redis.call('ZRANGE', KEYS[1], '0', '0')[1]
  if not id then return -1 end
  local due = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
  local job = due and string.match(redis.call('HGET', KEYS[5], id) or '', '^%S+ %S+ %S+ (.*)$')
  if job and redis.call('ZSCORE', KEYS[4], job) then
    if due < now + least then return 0 end
    redis.call('ZADD', KEYS[2], '0', id)
    if sorted then redis.call('ZADD', KEYS[3], '0', '1')
    elseif redis.call('LLEN', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], '1') end
    redis.call('PEXPIRE', KEYS[3], '60000')
    return 1
  end
  redis.call('ZREM', KEYS[1], id)
  if due then
    redis.call('ZREM', KEYS[2], id)
    redis.call('HDEL', KEYS[5], id)
  end
end
return -2
