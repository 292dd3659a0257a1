--[[
  Mirrors throttlekit/_core/algorithms/sliding_window.py. Code s.
  a, b, c  amount, period and step, microseconds
  Key      "window before used"
]]
local MOST_DEBT = 60

local function full_at(c)
  return (c.last + (c.last_used > 0 and 2 or 1)) * c.b
end

local function load_of(c)
  local over = math.floor(math.max(0, now - c.window * c.b) / c.c)
  return c.before * (c.steps - over) + c.used * c.steps
end

local function units_of(c) return math.floor(load_of(c) / c.steps) end

-- When, of units that fade in the window that begins at *begin*, less than *room* + 1 are left.
local function faded_at(c, begin, fading, room)
  local faded = c.steps + 1 - math.ceil((room + 1) * c.steps / max(1, fading))
  return max(now, begin + math.min(c.b, max(0, faded) * c.c))
end

local function settle_to(c, before, used)
  c.before, c.used, c.last, c.last_before, c.last_used = before, used, c.window, before, used
  return true
end

-- The window that runs now, by what is known of the last one that was used.
local function running_of(c)
  local running = math.floor(now / c.b)
  c.window, c.before, c.used = running, 0, 0
  if c.last >= running then c.window, c.before, c.used = c.last, c.last_before, c.last_used
  elseif c.last == running - 1 then c.before = c.last_used end
end

algorithms.s = {
  read = function(c)
    local window, before, used = string.match(redis.call('GET', c.key) or '', '^(%d+) (%d+) (%d+)$')
    local running = math.floor(now / c.b)
    c.c = tonumber(c.c)
    c.steps, c.window, c.before, c.used, c.last = math.ceil(c.b / c.c), running, 0, 0, nil
    if not window then return end
    c.stored, c.last, c.last_before, c.last_used = true, tonumber(window), tonumber(before), tonumber(used)
    if c.last * c.b - now > STALE then c.last, c.last_before, c.last_used, c.stale = running, 0, c.a, true end
    running_of(c)
  end,
  exhausted = function(c, at)
    local window = math.floor(at / c.b)
    local part = c.a * math.floor((at - window * c.b) / c.c)
    local rest = math.fmod(part, c.steps)
    local used = (part - rest) / c.steps + (rest > 0 and 1 or 0)
    local debt = c.stored and c.last == window - 1 and c.last_used or 0
    if not c.stored or c.last < window then c.last, c.last_before, c.last_used = window, math.max(debt, c.a), used
    elseif c.last == window then
      c.last_before, c.last_used = math.max(c.last_before, c.a), math.max(c.last_used, used)
    end
    c.stored = true
    running_of(c)
  end,
  there = function(c) return max(0, c.a - units_of(c)) end,
  ready = function(c, n)
    local there, units = c.a - units_of(c), n + c.size
    if units <= there then return now end
    local begin = c.window * c.b
    if c.used + units <= c.a then return faded_at(c, begin, c.before, c.a - c.used - units) end
    local alone, room = now, c.a - c.used - c.size
    if c.size > there then
      if room >= 0 then alone = faded_at(c, begin, c.before, room)
      else alone = faded_at(c, begin + c.b, c.used, c.a - c.size) end
    end
    if n == 0 or c.used > c.a then return alone + ceil(n * c.b / c.a) end
    local behind = begin + c.b + ceil((c.used + units - c.a) * c.b / c.a)
    if units <= c.a then behind = math.min(behind, faded_at(c, begin + c.b, c.used, c.a - units)) end
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
    return units, full_at(c)
  end,
  tight = no,
  slack = window_slack,
  pace = function(c) return ceil(c.size * c.b / c.a) end,
}
