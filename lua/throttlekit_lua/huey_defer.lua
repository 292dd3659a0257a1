--[[
  Put a denied job back into huey's schedule.

  KEYS[1]  the jobs in workers' hands, "<hand> <job>": sorted set
  KEYS[2]  huey's schedule: sorted set by the time to return, by huey's own clock

  ARGV[1]  the job as it is in KEYS[1]; "" if its body has begun: then it is in no list
  ARGV[2]  the job as it is put back, which is unique
  ARGV[3]  when it returns if it is not woken: text

  Returns  1 it is there; 0 it is another worker's by now, and this one does nothing with it

  Writes   KEYS[1] loses the job, KEYS[2] gets it.
]]
if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return redis.call('ZSCORE', KEYS[2], ARGV[2]) and 1 or 0  -- after a lost answer this is the second call
end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
return 1
