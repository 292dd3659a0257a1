--[[
  Mirrors throttlekit/_core/algorithms/fixed_window.py. Code f.
  a, b   amount and period, microseconds
  c      the zone: its offset from UTC, then "from offset" of each change of its clocks; microseconds
  Key    "window used"
]]
local MOST_DEBT_UNITS = 60

local function zone_of(c)
  if not c.zone then
    c.zone = {}
    for number in string.gmatch(c.c, '%-?%d+') do c.zone[#c.zone + 1] = tonumber(number) end
  end
  return c.zone
end

local function window_at(c, at)
  local zone = zone_of(c)
  local offset = zone[1]
  for i = 2, #zone, 2 do
    if at >= zone[i] then offset = zone[i + 1] end
  end
  return math.floor((at + offset) / c.b), offset
end

-- When a window begins, seen from now: also across the next change of the clocks.
local function window_begin(c, window)
  local zone, from, _, offset = zone_of(c), window * c.b, window_at(c, now)
  local begin = from - offset
  for i = 2, #zone, 2 do
    if now < zone[i] and zone[i] <= begin then begin = math.max(zone[i], from - zone[i + 1]) end
  end
  return begin
end

-- When a window begins, or first began: before the clocks fell back from it to the one before.
local function window_begun(c, window)
  local zone, from, begin = zone_of(c), window * c.b, window_begin(c, window)
  for i = 2, #zone, 2 do
    local first = from - zone[i - 1]
    if first < zone[i] and zone[i] <= now then begin = first end
  end
  return begin
end

algorithms.f = {
  read = function(c)
    local window, used = string.match(redis.call('GET', c.key) or '', '^(%d+) (%d+)$')
    c.running = window_at(c, now)
    c.window, c.used, c.last = c.running, 0, nil
    if not window then return end
    c.stored, c.last, c.last_used = true, tonumber(window), tonumber(used)
    if window_begun(c, c.last) - now > STALE then c.last, c.last_used, c.stale = c.running, c.a, true end
    if c.last >= c.running then c.window, c.used = c.last, c.last_used end
  end,
  exhausted = function(c, at)
    local window = window_at(c, at)
    if not c.stored or c.last < window then c.last, c.last_used = window, c.a
    elseif c.last == window then c.last_used = math.max(c.last_used, c.a) end
    c.stored = true
    if c.last >= c.running then c.window, c.used = c.last, c.last_used end
  end,
  there = function(c) return max(0, c.a - c.used) end,
  ready = function(c, n)
    if c.used + n + c.size <= c.a then return now end
    local over = math.min(c.used, c.a) + n + c.size - c.a
    return window_begin(c, c.window + max(1, ceil(over / c.a)))
  end,
  charge = function(c)
    c.used = c.used + c.size
    c.last, c.last_used = c.window, c.used
  end,
  settle = function(c)
    if c.by <= 0 and (not c.stored or window_at(c, c.granted) ~= c.window) then return false end
    c.used = math.max(0, math.min(c.used + c.by, MOST_DEBT_UNITS * c.a))
    c.last, c.last_used = c.window, c.used
    return true
  end,
  keep = function(c)
    local _, full = algorithms.f.use(c)
    redis.call('SET', c.key, whole(c.last) .. ' ' .. whole(c.last_used), 'PX', ttl(full))
  end,
  use = function(c)
    if not c.last or c.last_used == 0 then return c.used, now end
    return c.used, window_begin(c, c.last + 1)
  end,
  tight = no,
  slack = none,
  pace = function(c) return ceil(c.size * c.b / c.a) end,
}
