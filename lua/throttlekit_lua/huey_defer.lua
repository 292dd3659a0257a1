--[[
  Put a denied job back into huey's schedule.

  KEYS[1]  the jobs in workers' hands: sorted set
  KEYS[2]  huey's schedule: sorted set by the instant to come back, in huey's own clock
  KEYS[3]  the waiting jobs, "<priority> <job>": sorted set by the instant to come back, microseconds
  KEYS[4]  those of them that stand in the same line: sorted set by their place
  KEYS[5]  the lines in which waiting jobs stand: sorted set by the instant of the last look, microseconds

  ARGV[1]  the job as it was taken; "" if its body has begun: then it is in no list
  ARGV[2]  the job as it goes back
  ARGV[3]  when huey's own scheduler takes it, if no worker of ours has: text
  ARGV[4]  delay, microseconds
  ARGV[5]  its priority
  ARGV[6]  its place in its line; "" if it stands in none
  ARGV[7]  the name of its line

  Returns  1 put back; 0 it is another worker's by now, and this one does nothing with it

  Writes   KEYS[1] loses the job. KEYS[2] and KEYS[3] get it; with a place, KEYS[4] gets it and KEYS[5] the line. Ours
           expire a day after the last job that they hold is due: huey's own scheduler brings it where no worker of ours
           has.
]]
local function whole(x) return string.format('%.0f', x) end
local time = redis.call('TIME')
local now, job = tonumber(time[1]) * 1000000 + tonumber(time[2]), ARGV[5] .. ' ' .. ARGV[2]
local left = ARGV[4] / 1000 + 86400000

if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('ZADD', KEYS[3], whole(now + ARGV[4]), job)
if redis.call('PTTL', KEYS[3]) < left then redis.call('PEXPIRE', KEYS[3], whole(left)) end
if ARGV[6] ~= '' then
  redis.call('ZADD', KEYS[4], ARGV[6], job)
  redis.call('ZADD', KEYS[5], 'NX', whole(now), ARGV[7])
  if redis.call('PTTL', KEYS[4]) < left then redis.call('PEXPIRE', KEYS[4], whole(left)) end
  if redis.call('PTTL', KEYS[5]) < left then redis.call('PEXPIRE', KEYS[5], whole(left)) end
end
return 1
