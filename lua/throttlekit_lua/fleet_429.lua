--[[
  Count the 429 responses that paused limits. Decides nothing. Runs after fleet_common.lua.

  KEYS[1]  hash: the count of each "step limit"; a step is 20 seconds

  ARGV[1]  the counts, as JSON: {{limit, count}, …}

  Returns  nothing

  Writes   KEYS[1]: the counts of the last 15 minutes, in at most 2000 fields. It expires 15 minutes and two steps after
           the last 429, when no reader reads any of its steps
]]
local LASTS, MOST = 900, 2000

local known, fields = redis.call('HGETALL', KEYS[1]), 0
for i = 1, #known, 2 do
  if (tonumber(string.match(known[i], '^%d+')) or 0) < step - LASTS / STEP then
    redis.call('HDEL', KEYS[1], known[i])
  else
    fields = fields + 1
  end
end
for _, each in ipairs(cjson.decode(ARGV[1])) do
  local id = whole(step) .. ' ' .. each[1]
  if fields < MOST or redis.call('HEXISTS', KEYS[1], id) == 1 then
    redis.call('HINCRBY', KEYS[1], id, whole(each[2]))
    fields = fields + 1
  end
end
redis.call('EXPIRE', KEYS[1], whole(LASTS + 2 * STEP))
