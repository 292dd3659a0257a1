--[[
  Grant units of a limit at a lower pace for a while. Mirrors throttlekit/_core/slowdown.py. Runs after common.lua.

  line.slow   the slow-down, with the fields of SLOWED; nil if the limit is not slowed down
  c.pace      the claim's pace until `last`: `each` nanoseconds per unit, `charge` microseconds for the request, `tat`
]]
local ONE, TOLERANCE, BETA_PART, SAME = 1000000, 250000, 5, 2000000
local TOP, TOP_BELOW, TOP_PARTS = 19, 18, 20
local SLOWED = {'fell', 'top', 'span', 'floor', 'back', 'reported_at', 'reported_until', 'each', 'tat', 'moved', 'from'}
local SLOWED_FORMAT = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

local function slow_in(text)
  local found = {string.match(text, SLOWED_FORMAT)}
  if not found[1] then return nil end
  local slow = {}
  for i, field in ipairs(SLOWED) do slow[field] = tonumber(found[i]) end
  return slow
end

local function slow_text(slow)
  local texts = {}
  for i, field in ipairs(SLOWED) do texts[i] = whole(slow[field]) end
  return table.concat(texts, ' ')
end

local function slow_last(slow) return max(slow.back, slow.reported_until) end

-- If a clock that was ahead wrote the slow-down, shifts it so that it begins now. Returns whether it was shifted.
local function slow_at(slow)
  local later = slow.fell > now or slow.reported_at > now or slow.moved > now
  if slow.fell > now then
    local by = slow.fell - now
    slow.back, slow.from, slow.fell = slow.back - by, slow.from - by, now
  end
  if slow.reported_at > now then slow.reported_until, slow.reported_at = now + slow.reported_until - slow.reported_at, now end
  if slow.moved > now then slow.tat, slow.moved = max(0, slow.tat - (slow.moved - now)), now end
  return later
end

local function cubic(top, since, span)
  local beyond = math.floor(since * 1000 / span) - 1000
  return math.floor(top * (1000 * BETA_PART + math.floor(beyond * beyond * beyond / 1000000)) / (1000 * BETA_PART))
end

local function slow_part(slow)
  if now >= slow.back then return ONE end
  return math.min(ONE, max(slow.floor, cubic(slow.top, max(0, now - slow.from), slow.span)))
end

local function read_pace(c)
  local slow, mark, cost = c.list.slow, string.match(c.rest, '^(%d+) (%d+) ')
  local each, part = now < slow.reported_until and slow.each or 0, slow_part(slow)
  if part < ONE then each = max(each, max(1, mark) * ONE / part) end
  if each == 0 then return end
  local charge = math.min(ceil(cost * each / 1000), FURTHEST)
  c.pace = {each = each, charge = charge, tat = slow.tat, last = slow_last(slow)}
end

-- Returns the earliest time, from `opens` on, at which both the claim's algorithm and its pace admit it, if n other
-- units are admitted before it.
local function ready_after(c, n, opens)
  local ready, pace = c.algorithm.ready(c, n, opens), c.pace
  if not pace then return ready end
  local first = pace.tat - max(0, TOLERANCE - pace.charge)
  local slow = first + ceil(n * pace.each / 1000)
  if slow <= pace.last then return max(ready, slow) end
  local left = max(0, n - math.floor(max(0, pace.last - first) * 1000 / pace.each))
  return max(ready, pace.last, left > 0 and c.algorithm.ready(c, left, max(opens, pace.last)) or 0)
end

-- Charges the request to the pace. Returns the slow-down before that, or nil.
local function charge_pace(c)
  local slow = c.list.slow
  local begins = c.begins or now
  if c.pace then slow.tat, slow.moved = max(c.pace.tat, begins) + c.pace.charge, begins
  elseif slow and begins >= slow_last(slow) then c.list.slow = nil end
  return slow
end
