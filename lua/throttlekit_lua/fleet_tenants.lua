--[[
  Record the units that each tenant of a shared limit got since the process's last report. Decides nothing. Runs
  after fleet_common.lua.

  KEYS[i]    of one step, 20 seconds. Hash: "limit tenant" -> "units wait weight": granted units, the longest wait of a
             job in microseconds, the tenant's weight in thousandths

  ARGV[1]    the report, as JSON: {{"limit tenant", units, wait, weight}, …}; see throttlekit/fleet/tenants.py

  Returns  nothing

  Writes   KEYS[i], which expires before a later step uses the same key
]]
local MOST = 2000

local i = 1 + step % STEPS
local room = MOST - redis.call('HLEN', KEYS[i])
for _, each in ipairs(cjson.decode(ARGV[1])) do
  local known = redis.call('HGET', KEYS[i], each[1])
  if known or room > 0 then
    local units, wait = string.match(known or '', '^(%d+) (%d+) ')
    units, wait = (tonumber(units) or 0) + each[2], math.max(tonumber(wait) or 0, each[3])
    redis.call('HSET', KEYS[i], each[1], whole(units) .. ' ' .. whole(wait) .. ' ' .. whole(each[4]))
    if not known then room = room - 1 end
  end
end
redis.call('EXPIRE', KEYS[i], whole((step + STEPS) * STEP - now - 1))
