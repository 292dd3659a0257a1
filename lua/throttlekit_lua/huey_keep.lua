--[[
  Move waiting jobs that are overdue to a later time in huey's schedule, so that huey's own scheduler does not take
  them: it takes all due jobs at once, and then puts one after the other into the queue, so that a kill in between would
  lose the rest. Waiting jobs are overdue only after an outage of all workers, or where there are fewer workers than due
  jobs.

  One call looks at 100 due jobs at most; call it until it returns -1.

  KEYS[1]  huey's schedule: sorted set by the time to come back, in huey's own clock
  KEYS[2]  the waiting jobs' ids: sorted set by the time to come back

  ARGV[1]  now, in huey's own clock: text
  ARGV[2]  when huey's scheduler may take them: text
  ARGV[3]  how many due jobs the calls before have found to be the user's own: they stay, and come first

  Returns  ARGV[3] of the next call; -1: every waiting job has been moved

  Writes   KEYS[1] has these jobs later.
]]
local MOST = 100
local kept = tonumber(ARGV[3])

local count = math.min(MOST, redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[1]) - kept)
if count <= 0 then return -1 end
for _, job in ipairs(redis.call('ZRANGE', KEYS[1], tostring(kept), tostring(kept + count - 1))) do
  if redis.call('ZSCORE', KEYS[2], redis.sha1hex(job)) then
    redis.call('ZADD', KEYS[1], ARGV[2], job)
  else
    kept = kept + 1
  end
end
return count == MOST and kept or -1
