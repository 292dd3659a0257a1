--[[
  Put a denied job back into huey's schedule.

  KEYS[1]  the jobs in workers' hands, "<hand> <job>": sorted set
  KEYS[2]  huey's schedule: sorted set by the instant to come back, in huey's own clock
  KEYS[3]  the waiting jobs' ids: sorted set by the instant to come back, microseconds
  KEYS[4]  those of them that stand in the same line: sorted set by their place
  KEYS[5]  the lines in which waiting jobs stand: sorted set by the instant of the last look, microseconds
  KEYS[6]  the waiting jobs by their ids, "<priority> <base> <line> <job>": hash
  KEYS[7]  how late each line is, microseconds: hash

  ARGV[1]  the job as it is in KEYS[1]; "" if its body has begun: then it is in no list
  ARGV[2]  the job as it goes back
  ARGV[3]  when huey's own scheduler takes it, if no worker of ours has: text
  ARGV[4]  delay, microseconds
  ARGV[5]  its priority
  ARGV[6]  its place in its line; "" if it stands in none
  ARGV[7]  the name of its line; "-" none
  ARGV[8]  when it would have been due were its line not late, microseconds; "" if this answer says nothing of that

  Returns  1 put back; 0 it is another worker's by now, and this one does nothing with it

  Writes   KEYS[1] loses the job. KEYS[2], KEYS[3] and KEYS[6] get it; with a place, KEYS[4] gets it and loses those in
           front of it that have gone, and KEYS[5] gets the line. If it stands first, KEYS[7] gets how late the line
           is: all that stand behind it become due as much later, without a question of their own. Ours expire a day
           after the last job that they hold is due: huey's own scheduler brings it where no worker of ours has.
]]
local function whole(x) return string.format('%.0f', x) end
local time = redis.call('TIME')
local now, id = tonumber(time[1]) * 1000000 + tonumber(time[2]), redis.sha1hex(ARGV[2])
local left = ARGV[4] / 1000 + 86400000

if ARGV[1] ~= '' and redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
local late = tonumber(redis.call('HGET', KEYS[7], ARGV[7]) or nil) or 0
if ARGV[8] ~= '' then
  local each
  for _ = 1, 100 do
    each = redis.call('ZRANGE', KEYS[4], '0', '0', 'WITHSCORES')
    if not each[1] or redis.call('HEXISTS', KEYS[6], each[1]) == 1 then break end
    redis.call('ZREM', KEYS[4], each[1])
  end
  if not each[1] or tonumber(each[2]) >= tonumber(ARGV[6]) then
    late = now + ARGV[4] - ARGV[8]
    redis.call('HSET', KEYS[7], ARGV[7], whole(late))
  end
end
local note = ARGV[5] .. ' ' .. whole(now + ARGV[4] - late) .. ' ' .. ARGV[7] .. ' ' .. ARGV[2]
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[2])
redis.call('ZADD', KEYS[3], whole(now + ARGV[4]), id)
redis.call('HSET', KEYS[6], id, note)
if ARGV[6] ~= '' then
  redis.call('ZADD', KEYS[4], ARGV[6], id)
  redis.call('ZADD', KEYS[5], 'NX', whole(now), ARGV[7])
end
for _, key in ipairs({KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]}) do
  if redis.call('PTTL', key) < left then redis.call('PEXPIRE', key, whole(left)) end
end
return 1
