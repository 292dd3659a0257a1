--[[
  An amount per calendar window. Mirrors throttlekit/_core/algorithms/fixed_window.py. Code f.
  a, b   amount and period, microseconds
  c      the time zone: its offset from UTC, then "from offset" for each change of its clocks; microseconds
  Key    "window used"
]]
local MOST_DEBT_UNITS, PARTS = 60, 4096

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

-- Returns when a window begins. The clocks may change between `at` and that time.
local function window_begin(c, window, at)
  local zone, from, _, offset = zone_of(c), window * c.b, window_at(c, at)
  local begin = from - offset
  for i = 2, #zone, 2 do
    if at < zone[i] and zone[i] <= begin then begin = math.max(zone[i], from - zone[i + 1]) end
  end
  return begin
end

-- Returns when a window first began: if the clocks are set back across its begin, it begins twice.
local function window_begun(c, window)
  local zone, from, begin = zone_of(c), window * c.b, window_begin(c, window, now)
  for i = 2, #zone, 2 do
    local first = from - zone[i - 1]
    if first < zone[i] and zone[i] <= now then begin = first end
  end
  return begin
end

-- Returns the current window at `at`, the units used in it, and the time since it began.
local function counted_at(c, at)
  local window, offset = window_at(c, at)
  if c.last and c.last >= window then return c.last, c.last_used, c.last == window and (at + offset) % c.b end
  return window, 0, (at + offset) % c.b
end

algorithms.f = {
  read = function(c)
    local window, used = string.match(redis.call('GET', c.key) or '', '^(%d+) (%d+)$')
    c.stored, c.last, c.last_used = window ~= nil, tonumber(window), tonumber(used)
    if window and window_begun(c, c.last) - now > STALE then
      c.last, c.last_used, c.stale = window_at(c, now), c.a, true
    end
    c.window, c.used = counted_at(c, now)
  end,
  exhaust = function(c, at)
    local window, used, over = counted_at(c, at)
    if not over then return end
    local step = ceil(c.b / PARTS)
    local even = quotient(c.a * ceil(over / step), ceil(c.b / step))
    c.stored, c.last, c.last_used = true, window, math.max(used, even)
    c.window, c.used = counted_at(c, now)
  end,
  there = function(c) return max(0, c.a - c.used) end,
  ready = function(c, n, at)
    local window, used = c.window, c.used
    if at > now then window, used = counted_at(c, at) end
    if used + n + c.size <= c.a then return at end
    local over = math.min(used, c.a) + n + c.size - c.a
    return window_begin(c, window + max(1, ceil(over / c.a)), at)
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
    return c.used, window_begin(c, c.last + 1, now)
  end,
  pace = function(c) return time_of(c.size, c.b, c.a) end,
}
