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
local function not_slow()
  local slow = {top = ONE, span = 1, floor = ONE}
  for _, field in ipairs(SLOWED) do slow[field] = slow[field] or 0 end
  return slow
end

local function slow_gate(slow) return slow_last(slow) > now and slow.gate or 0 end

-- Returns whether it changed.
local function fall(line, granted, span, floor)
  local slow = line.slow or not_slow()
  if granted and slow.back > now and granted < slow.fell then return false end
  local part = max(slow_part(slow), floor)
  local below = slow.back > now and part < slow.top
  local from = max(line.paused, now)
  local gate = max(slow_gate(slow), from + TOLERANCE)
  slow.top = max(floor, math.floor(part * (below and TOP_BELOW or TOP) / TOP_PARTS))
  local spans = 1
  while cubic(slow.top, spans * span, span) < ONE do spans = spans + 1 end
  slow.fell, slow.span, slow.floor, slow.back, slow.gate = now, span, floor, from + spans * span, gate
  slow.from, slow.moved = from, now
  line.slow = slow
  return true
end

local function hear(line, remaining, reset, ours)
  local slow, until_ = line.slow, now + reset
  local known = slow and slow.heard > now
  if reset <= 0 or remaining >= ours then return false end
  local each = ceil(reset * 1000 / max(1, remaining))
  if known and until_ <= slow.heard + SAME then
    if each <= slow.each then return false end
    if until_ >= slow.heard - SAME then until_ = max(until_, slow.heard) end
  end
  slow = slow or not_slow()
  local gate, first = slow_gate(slow), now + max(TOLERANCE, ceil(each / 1000))
  if not known or remaining == 0 then gate = max(gate, first)
  elseif until_ > slow.heard + SAME then gate = math.min(gate, first) end
  slow.heard_from, slow.heard, slow.each, slow.moved, slow.gate = now, until_, each, now, gate
  line.slow = slow
  return true
end

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
