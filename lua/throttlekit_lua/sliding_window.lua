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
    if units_of(c) + n + c.size <= c.a then return now end
    local units = math.min(n + c.size, c.a)
    local beyond = ceil((n + c.size - units) * c.b / c.a)
    local begin, fading, room = c.window * c.b, c.before, c.a - c.used - units
    if room < 0 then begin, fading, room = begin + c.b, c.used, c.a - units end
    if fading == 0 then return now + beyond end
    local faded = c.steps + 1 - math.ceil((room + 1) * c.steps / fading)
    return math.max(now, begin + math.min(c.b, faded * c.c)) + beyond
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
