--[[
  Take or keep the promoter's lease of one queue, and find the lines to look at.

  KEYS[1]  the lease: the promoter's id
  KEYS[2]  the lines of the queue in which parked jobs stand: sorted set by when to look at them, seconds
  KEYS[3]  the parked jobs that end if they wait for too long: sorted set of "line number id" by when, seconds

  ARGV[1]  the promoter's id
  ARGV[2]  for how many milliseconds it takes the lease
  ARGV[3]  so many lines at most that are due for a look, and as many jobs that end
  ARGV[4]  how many of the others to pass over
  ARGV[5]  so many of the others at most, in case their limit has become faster

  Returns  nothing if another promoter has the lease; else the lines that are due, others, the jobs that end now,
           and 1 if the lease is a new one, else 0

  Writes   KEYS[1]
]]
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return false end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = string.format('%.6f', tonumber(time[1]) + tonumber(time[2]) / 1000000)
return {
  redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', '0', ARGV[3]),
  redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf', 'LIMIT', ARGV[4], ARGV[5]),
  redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', '0', ARGV[3]),
  holder and 0 or 1,
}
