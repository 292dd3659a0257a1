--[[
  Move waiting jobs, at most 100 per call, from huey's schedule to KEYS[3], from which idle workers take jobs first.

  KEYS[1]  huey's schedule: sorted set
  KEYS[2]  the jobs that workers hold, "<hand> <job>": see huey_take.lua
  KEYS[3]  the woken jobs, "<time> <hand> <job>": list; sorted set by falling priority if the queue is one

  ARGV[1]     "1" if the queue is a sorted set, otherwise "0"
  ARGV[2i]    the priority of a job
  ARGV[2i+1]  the job

  Returns  the number of the jobs in KEYS[2] now, with those that were woken before. The others were flushed or decided.

  Writes   KEYS[1] loses these jobs, KEYS[2] and KEYS[3] get them. KEYS[2] keeps a job if a worker pops it from KEYS[3]
           and is killed.
]]
local time, found = redis.call('TIME'), 0
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

for i = 1, (#ARGV - 1) / 2 do
  local job = ARGV[2 * i + 1]
  local note = string.sub(redis.sha1hex(job), 1, 16) .. ' ' .. job
  if redis.call('ZREM', KEYS[1], job) == 1 then
    redis.call('ZADD', KEYS[2], string.format('%.0f', now), note)
    note = string.format('%016.0f', now + found) .. ' ' .. note
    if ARGV[1] == '1' then redis.call('ZADD', KEYS[3], string.format('%.17g', -tonumber(ARGV[2 * i])), note)
    else redis.call('LPUSH', KEYS[3], note) end
    found = found + 1
  elseif redis.call('ZSCORE', KEYS[2], note) then
    found = found + 1
  end
end
redis.call('PEXPIRE', KEYS[3], '60000')
return found
