--[[
  The shortest way to a grant: every claim is a token bucket, kept at its own rate, that has room and no line. Comes
  after clock.lua and before all that costs more to set up than this decision. It answers and writes what acquire.lua
  would. In any other case it writes nothing, and the text behind it decides.

  KEYS and ARGV  those of acquire.lua
]]
if ARGV[2] ~= 'peek' then
  local tats = {}
  for i = 1, #KEYS / 3 do
    local at = 3 * i + 1
    local line = redis.call('GET', KEYS[3 * i - 1])
    local stored = not line and redis.call('GET', KEYS[3 * i - 2])
    local size, tat = tonumber(ARGV[at]), not stored and 0 or tonumber(stored)
    local own_rate = string.find(ARGV[at + 2], '^t %d+;[%d/]+;')
    if line or size == 0 or not own_rate or not tat or tat - ARGV[at + 1] > now then
      tats = nil
      break
    end
    tats[i] = (tat > now and tat or now) + size
  end
  if tats then
    local reply = format(INTEGER, now)
    for i = 1, #tats do
      local tat = tats[i]
      local text = format(INTEGER, tat)
      redis.call('SET', KEYS[3 * i - 2], text, 'PX', format(INTEGER, ceil((tat - now + KEPT) / 1000)))
      reply = reply .. ' 0 ' .. text
    end
    return reply
  end
end
