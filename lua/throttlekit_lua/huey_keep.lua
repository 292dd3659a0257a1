--[[
  Keep huey's own scheduler from taking jobs whose turn our workers bring: it takes all of them at once, and then puts
  one after the other into the queue, so that a kill in between would lose the rest. They are overdue only after an
  outage of all workers, or where there are fewer workers than due jobs.

  KEYS[1]  huey's schedule: sorted set by the instant to come back, in huey's own clock
  KEYS[2]  the waiting jobs' ids: sorted set by the instant to come back, microseconds
  KEYS[3]  the waiting jobs by their ids, "<priority> <base> <line> <job>": hash

  ARGV[1]  now, in huey's own clock: text
  ARGV[2]  when it may take them: text

  Returns  how many it would have taken

  Writes   KEYS[1] has these later.
]]
if redis.call('ZCOUNT', KEYS[1], '-inf', ARGV[1]) == 0 then return 0 end
local time, kept = redis.call('TIME'), 0
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))) do
  local job = string.match(redis.call('HGET', KEYS[3], each) or '', '^%S+ %S+ %S+ (.*)$')
  local at = job and tonumber(redis.call('ZSCORE', KEYS[1], job) or nil)
  if at and at <= tonumber(ARGV[1]) then
    redis.call('ZADD', KEYS[1], ARGV[2], job)
    kept = kept + 1
  end
end
return kept
