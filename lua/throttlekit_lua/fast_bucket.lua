--[[
  The shortest way to a grant: every claim is a token bucket, kept at its own rate, that has room and no line. Comes
  after clock.lua and before all that costs more to set up than this decision. It answers and writes what acquire.lua
  would. In any other case it writes nothing, and the text behind it decides.

  KEYS and ARGV  those of acquire.lua
]]
if ARGV[2] ~= 'peek' then
  local tats = {}
  for i = 1, #KEYS / 3 do
    local at = 6 * i + 1
    local line = redis.call('GET', KEYS[3 * i - 1])
    local stored = not line and redis.call('GET', KEYS[3 * i - 2])
    local size, tat = tonumber(ARGV[at + 1]), not stored and 0 or tonumber(stored)
    local other_rate = string.find(ARGV[at + 4], ' ', 1, true)
    if line or size == 0 or other_rate or not tat or tat - ARGV[at + 2] > now then
      tats = nil
      break
    end
    tats[i] = max(now, tat) + size
  end
  if tats then
    local instant = ' ' .. whole(now)
    local reply = '0 1' .. instant .. instant .. instant
    for i, tat in ipairs(tats) do
      local text = whole(tat)
      redis.call('SET', KEYS[3 * i - 2], text, 'PX', ttl(tat))
      reply = reply .. ' 0 ' .. text
    end
    return reply
  end
end
