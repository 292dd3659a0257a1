--[[
  Move parked jobs of one line to another line of the park, because a limit blocks them, and not the jobs behind them.

  KEYS[1]  the parked jobs of the line: sorted set of "number id", by shift + start
  KEYS[2]  the parked jobs of the other line: the same; they keep their scores
  KEYS[3]  the lines of the queue in which parked jobs stand: sorted set by when to look at them, seconds
  KEYS[4]  the epochs and shifts of the lines and the limits' names: hash by line
  KEYS[5]  the parked jobs that end if they wait for too long: sorted set of "line number id"

  ARGV[1]    the line
  ARGV[2]    the other line
  ARGV[3]    the name of the limit that blocks the jobs
  ARGV[4]    in how many seconds to look at the other line
  ARGV[4+i]  job i, as in KEYS[1]; a job that is no longer there is skipped

  Returns  how many were moved

  Writes   KEYS[1] loses the jobs, KEYS[2] gets them, KEYS[5] names them by the other line. KEYS[3] and KEYS[4] get the
           other line, and lose a line without jobs.
]]
local from, to, moved = ARGV[1], ARGV[2], 0
for i = 1, #ARGV - 4 do
  local job = ARGV[4 + i]
  local score = tonumber(redis.call('ZSCORE', KEYS[1], job) or nil)
  if score then
    redis.call('ZADD', KEYS[2], string.format('%.0f', score), job)
    redis.call('ZREM', KEYS[1], job)
    local old, note = from .. ' ' .. job, to .. ' ' .. job
    local ends = tonumber(redis.call('ZSCORE', KEYS[5], old) or nil)
    if ends then
      redis.call('ZADD', KEYS[5], string.format('%.6f', ends), note)
      redis.call('ZREM', KEYS[5], old)
    end
    moved = moved + 1
  end
end
if moved > 0 then
  local shifts = string.match(redis.call('HGET', KEYS[4], from) or '', '^[%d/]+') or '0'
  local note = shifts .. ' ' .. ARGV[3]
  redis.call('HSET', KEYS[4], ARGV[2], note)
  local time = redis.call('TIME')
  local at = tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(ARGV[4])
  redis.call('ZADD', KEYS[3], string.format('%.6f', at), ARGV[2])
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('HDEL', KEYS[4], ARGV[1])
end
return moved
