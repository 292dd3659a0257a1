--[[
  Mirrors throttlekit/_core/algorithms/gcra.py. Code t.
  a, b   headroom and capacity, microseconds; sizes are microseconds too
  c      microseconds of one unit, as a fraction
  Key    the TAT, integer microseconds; "TAT debt" if it was settled beyond empty
]]
local MOST_DEBT_CAPACITIES, MIN_CUT_US, MOST_DEBT_US, MOST_SLACK_US = 60, 3600000000, 316224000000000, 20000

local function most_debt(c)
  return math.min(math.max(MOST_DEBT_CAPACITIES * c.b, MIN_CUT_US), MOST_DEBT_US)
end

-- Microseconds of so many units, rounded up; and how many units so many microseconds hold.
local function fraction(c)
  local over, under = string.match(c.c, '^(%d+)/?(%d*)$')
  return tonumber(over), tonumber(under) or 1
end

algorithms.t = {
  read = function(c)
    local stored = redis.call('GET', c.key)
    if not stored then return end
    c.tat, c.debt = tonumber(stored), 0
    if not c.tat then
      local tat, debt = string.match(stored, '^(%d+) (%d+)$')
      c.tat, c.debt = tonumber(tat or nil), tonumber(debt or nil)
      if not c.tat then return end
    end
    c.stored = true
    if c.tat - now > c.b + c.debt + STALE then c.tat, c.debt, c.stale = now + c.b, 0, true end
  end,
  exhausted = function(c, at)
    if not c.stored or c.tat < at + c.b then c.stored, c.tat, c.debt = true, at + c.b, 0 end
  end,
  there = function(c)
    local over, under = fraction(c)
    return math.floor(max(0, c.b - max(0, (c.tat or 0) - now)) * under / over)
  end,
  ready = function(c, n, at)
    if n == 0 then return max(at, (c.tat or 0) - c.a) end
    local over, under = fraction(c)
    return max(at, max(at, c.tat or 0) + ceil(n * over / under) - c.a)
  end,
  charge = function(c) c.tat, c.debt = max(now, c.tat or 0) + c.size, 0 end,
  settle = function(c)
    if not c.tat and c.by <= 0 then return false end
    c.tat = max(now, math.min(max(now, c.tat or 0) + c.by, now + c.b + most_debt(c)))
    c.debt = max(0, c.tat - now - c.b)
    return true
  end,
  keep = function(c)
    local stored = whole(c.tat)
    if c.debt > 0 then stored = stored .. ' ' .. whole(c.debt) end
    redis.call('SET', c.key, stored, 'PX', ttl(c.tat))
  end,
  use = function(c) return 0, c.tat or now end,
  tight = function(c, t) return c.a < t end,
  slack = function(c, t)
    if c.a >= t then return 0 end
    local over, under = fraction(c)
    return math.min(math.floor(math.floor(over / under) / SLACK), MOST_SLACK_US)
  end,
  pace = function(c) return c.size end,
}
