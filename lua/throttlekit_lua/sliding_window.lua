--[[
  Two counters, of which the older one expires. Mirrors throttlekit/_core/algorithms/sliding_window.py. Code s.
  a, b, c  amount, period and step, microseconds
  Key      "window before used"
]]
local MOST_DEBT = 60

-- Returns the number of units that count at `at`.
local function units_at(c, window, before, used, at)
  local left = c.steps - math.floor(math.max(0, at - window * c.b) / c.c)
  -- before * left / c.steps, in two parts: at another rate, `before` may be too large for one exact product.
  local high = math.floor(before / 1024)
  local part = math.floor(high * left / c.steps)
  local rest = (high * left - part * c.steps) * 1024 + before % 1024 * left
  return used + part * 1024 + math.floor(rest / c.steps)
end
local function units_of(c) return units_at(c, c.window, c.before, c.used, now) end

-- Returns the first time from `at` on with less than `room` + 1 of `fading` units left. They expire from `begin` on.
local function faded_at(c, begin, fading, room, at)
  local faded = c.steps + 1 - math.ceil((room + 1) * c.steps / max(1, fading))
  return max(at, begin + math.min(c.b, max(0, faded) * c.c))
end

local function settle_to(c, before, used)
  c.before, c.used, c.last, c.last_before, c.last_used = before, used, c.window, before, used
  return true
end

-- Returns the current window at `at`, the units of the window before it, and its own units.
local function counted_at(c, at)
  local window = math.floor(at / c.b)
  if not c.last or c.last < window - 1 then return window, 0, 0 end
  if c.last < window then return window, c.last_used, 0 end
  return c.last, c.last_before, c.last_used
end

algorithms.s = {
  read = function(c)
    local window, before, used = string.match(redis.call('GET', c.key) or '', '^(%d+) (%d+) (%d+)$')
    c.c = tonumber(c.c)
    c.steps, c.last = math.ceil(c.b / c.c), nil
    if window then
      c.stored, c.last, c.last_before, c.last_used = true, tonumber(window), tonumber(before), tonumber(used)
      if c.last * c.b - now > STALE then
        c.last, c.last_before, c.last_used, c.stale = math.floor(now / c.b), 0, c.a, true
      end
    end
    c.window, c.before, c.used = counted_at(c, now)
  end,
  exhaust = function(c, at)
    local window, before, used = counted_at(c, at)
    if window > math.floor(at / c.b) then return end
    local over = math.floor((at - window * c.b) / c.c)
    used = math.max(used, quotient(c.a * over, c.steps))
    before = math.max(before, quotient(math.max(0, c.a - used) * c.steps, c.steps - over))
    c.stored, c.last, c.last_before, c.last_used = true, window, before, used
    c.window, c.before, c.used = counted_at(c, now)
  end,
  there = function(c) return max(0, c.a - units_of(c)) end,
  ready = function(c, n, at)
    local window, before, used = c.window, c.before, c.used
    if at > now then window, before, used = counted_at(c, at) end
    local there, units = c.a - units_at(c, window, before, used, at), n + c.size
    if units <= there then return at end
    local begin = window * c.b
    if used + units <= c.a then return faded_at(c, begin, before, c.a - used - units, at) end
    local alone, room = at, c.a - used - c.size
    if c.size > there then
      if room >= 0 then alone = faded_at(c, begin, before, room, at)
      else alone = faded_at(c, begin + c.b, used, c.a - c.size, at) end
    end
    if n == 0 or used > c.a then return alone + time_of(n, c.b, c.a) end
    local behind = begin + c.b + time_of(used + units - c.a, c.b, c.a)
    if units <= c.a then behind = math.min(behind, faded_at(c, begin + c.b, used, c.a - units, at)) end
    return max(alone, behind)
  end,
  charge = function(c) settle_to(c, c.before, c.used + c.size) end,
  settle = function(c)
    if c.by > 0 then return settle_to(c, c.before, math.min(c.used + c.by, MOST_DEBT * c.a)) end
    local granted = math.floor(c.granted / c.b)
    if not c.stored or granted < c.window - 1 or granted > c.window then return false end
    if granted == c.window then return settle_to(c, c.before, math.max(0, c.used + c.by)) end
    return settle_to(c, math.max(0, c.before + c.by), c.used)
  end,
  keep = function(c)
    local _, full = algorithms.s.use(c)
    redis.call('SET', c.key, whole(c.last) .. ' ' .. whole(c.last_before) .. ' ' .. whole(c.last_used),
      'PX', ttl(full))
  end,
  use = function(c)
    local units = units_of(c)
    if not c.last or c.last_before + c.last_used == 0 then return units, now end
    return units, (c.last + (c.last_used > 0 and 2 or 1)) * c.b
  end,
  pace = function(c) return time_of(c.size, c.b, c.a) end,
}
