--[[
  Slow limits down for a while. Mirrors throttlekit/_core/acquire.py, `slow`. Comes after common.lua, the algorithms,
  slowdown.lua and line.lua.

  KEYS[3i-2]  what is taken of limit i: as its algorithm keeps it
  KEYS[3i-1]  the numbers of its waiting line, and KEYS[3i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[9i-7]  limit i: code of its algorithm
  ARGV[9i-6]  limit i: a, b and c of its algorithm
  ARGV[9i-3]  limit i: its mark
  ARGV[9i-2]  limit i: "fall" or "heard"; or "drop", for slots that adapt
  ARGV[9i-1]  a fall or a drop: when the refused job was admitted, or ""; heard: how many units remain
  ARGV[9i]    a fall: the span, microseconds; heard: until when, microseconds from now; a drop: ""
  ARGV[9i+1]  a fall: the floor, millionths; else ""

  Returns  of each limit, whether it changed: 1 or 0

  Writes   KEYS[3i-1] and KEYS[3i] of each that changed, expiring as in acquire.lua, and after the slowdown; after a
           drop KEYS[3i-2] in their place
]]
local reply = {}
for i = 1, #KEYS / 3 do
  local at = 9 * i - 7
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3], aside = 0,
  }
  local mark, why, x = max(1, tonumber(ARGV[at + 4])), ARGV[at + 5], tonumber(ARGV[at + 6])
  local y, z = tonumber(ARGV[at + 7]), tonumber(ARGV[at + 8])
  read_line(c)
  c.of.read(c)
  c.line = c.line or no_line()
  if c.line.emptied > 0 then c.of.exhausted(c, c.line.emptied) end
  local changed
  if why == 'fall' then changed = fall(c.line, x, y, z)
  elseif why == 'heard' then changed = hear(c.line, x, y, c.of.there(c) + math.floor(y / (mark / 1000)))
  else
    changed = c.of.drop(c, x)
    if changed then c.of.keep(c) end
  end
  if changed and why ~= 'drop' then write_line(c) end
  reply[i] = changed and 1 or 0
end
return reply
