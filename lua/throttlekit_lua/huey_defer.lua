--[[
  Put a denied job back into huey's schedule.

  KEYS[1]  the jobs that workers hold, "<hand> <job>": sorted set
  KEYS[2]  huey's schedule: sorted set by the time at which huey enqueues the job again, by huey's own clock

  ARGV[1]  the job's member of KEYS[1]; "" if its body has begun, so that it is in no list
  ARGV[2]  the job's new text in the schedule, which is unique
  ARGV[3]  the time at which huey enqueues the job if it is not woken before: text

  Returns  1 if the job is in the schedule; 0 if another worker has taken it, so that the caller must ignore it

  Writes   KEYS[1] loses the job, KEYS[2] gets it.
]]
if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return redis.call('ZSCORE', KEYS[2], ARGV[2]) and 1 or 0  -- this is a second call if the first reply was lost
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
return 1
