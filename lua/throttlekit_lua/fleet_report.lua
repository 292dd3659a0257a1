--[[
  Record the decisions of one process since its last report. Decides nothing. Runs after fleet_common.lua.

  KEYS[1]    sorted set: each key that had a decision, by the time of the last one, seconds
  KEYS[2]    sorted set: each key with waiting jobs, by the estimated time at which the last one passes, microseconds;
             kept for another hour, because jobs may wait for longer than estimated
  KEYS[3]    hash: limit -> "seconds definition", with the time of its last report
  KEYS[4]    sorted set: processes, by the time of the last report, seconds
  KEYS[5]    sorted set: denied jobs, by the time of the report, seconds
  KEYS[6]    hash: denied job -> its last decision
  KEYS[i+1]  of one step, 20 seconds. Sorted set: granted units, by key
  KEYS[i+2]  of the same step. Sorted set: denials, by key
  KEYS[i+3]  of the same step. Hash: "code limit" or "code key" -> count. Code w: the longest wait. Code r: the rate of
             the limit, -1 if it changed. Field "step": the number of the step; without it, the step is unknown

  ARGV[1]    the report, as JSON: see throttlekit/fleet/activity.py

  Returns  nothing

  Writes   KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5] and KEYS[6], trimmed to the newest or longest parts, expiring an
           hour after the last report; KEYS[i+1], KEYS[i+2] and KEYS[i+3], expiring before a later step uses them
]]
local HOUR, ALIVE = 3600, 15
local MOST_KEYS, MOST_RANKED, MOST_COUNTS, MOST_LIMITS, MOST_JOBS = 100000, 10000, 100000, 1000, 10000
local AT_ONCE, max = 1000, math.max

local at = 6 + 3 * (step % STEPS)
local report = cjson.decode(ARGV[1])

if report.process[1] then redis.call('ZREM', KEYS[4], report.process[1]) end
if report.process[2] then redis.call('ZADD', KEYS[4], whole(now), report.process[2]) end
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', whole(now - ALIVE))

if #report.limits > 0 and redis.call('HLEN', KEYS[3]) >= MOST_LIMITS then
  local known = redis.call('HGETALL', KEYS[3])
  for i = 1, #known, 2 do
    local reported = tonumber(string.match(known[i + 1], '^%d+')) or 0
    if reported < now - HOUR then redis.call('HDEL', KEYS[3], known[i]) end
  end
end
for _, each in ipairs(report.limits) do
  if redis.call('HLEN', KEYS[3]) < MOST_LIMITS or redis.call('HEXISTS', KEYS[3], each[1]) == 1 then
    redis.call('HSET', KEYS[3], each[1], whole(now) .. ' ' .. each[2])
  end
end

for _, each in ipairs(report.keys) do
  redis.call('ZADD', KEYS[1], whole(now), each[1])
  if each[2] > 0 then redis.call('ZINCRBY', KEYS[at + 1], whole(each[2]), each[1]) end
  if each[3] > 0 then redis.call('ZINCRBY', KEYS[at + 2], whole(each[3]), each[1]) end
  if each[4] > 0 then redis.call('ZADD', KEYS[2], 'GT', whole(each[4]), each[1]) end
end
redis.call('HSET', KEYS[at + 3], 'step', whole(step))
local room = MOST_COUNTS - redis.call('HLEN', KEYS[at + 3])
for _, each in ipairs(report.counts) do
  if room > 0 or redis.call('HEXISTS', KEYS[at + 3], each[1]) == 1 then
    redis.call('HINCRBY', KEYS[at + 3], each[1], whole(each[2]))
    room = room - 1
  end
end
for _, each in ipairs(report.waits) do
  local known = tonumber(redis.call('HGET', KEYS[at + 3], each[1]) or nil) or 0
  if each[2] > known and (room > 0 or known > 0) then
    redis.call('HSET', KEYS[at + 3], each[1], whole(each[2]))
    room = room - 1
  end
end
for _, each in ipairs(report.rates) do
  local known = redis.call('HGET', KEYS[at + 3], each[1])
  if known and known ~= whole(each[2]) then
    redis.call('HSET', KEYS[at + 3], each[1], '-1')
  elseif not known and room > 0 then
    redis.call('HSET', KEYS[at + 3], each[1], whole(each[2]))
    room = room - 1
  end
end
for _, each in ipairs(report.jobs) do
  redis.call('ZADD', KEYS[5], whole(now), each[1])
  redis.call('HSET', KEYS[6], each[1], each[2])
end

-- Removes few members per call: the server serves no other client while it removes many.
local function trim(key, most, last)
  local over = redis.call('ZCARD', key) - most
  if last then over = max(over, redis.call('ZCOUNT', key, '-inf', whole(last))) end
  if over > 0 then redis.call('ZREMRANGEBYRANK', key, '0', whole(math.min(over, AT_ONCE) - 1)) end
end
trim(KEYS[1], MOST_KEYS, now - HOUR)
trim(KEYS[2], MOST_RANKED, (now - HOUR) * 1000000)
trim(KEYS[at + 1], MOST_RANKED)
trim(KEYS[at + 2], MOST_RANKED)
local old = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', whole(now - HOUR), 'LIMIT', '0', '1000')
local many = redis.call('ZCARD', KEYS[5]) - MOST_JOBS
if #old == 0 and many > 0 then old = redis.call('ZRANGE', KEYS[5], '0', whole(math.min(many, AT_ONCE) - 1)) end
for _, job in ipairs(old) do
  redis.call('ZREM', KEYS[5], job)
  redis.call('HDEL', KEYS[6], job)
end

for _, key in ipairs({KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]}) do
  redis.call('EXPIRE', key, whole(HOUR))
end
for _, key in ipairs({KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]}) do
  redis.call('EXPIRE', key, whole((step + STEPS) * STEP - now - 1))
end
