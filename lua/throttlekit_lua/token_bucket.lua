--[[
  A token bucket. Mirrors throttlekit/_core/algorithms/gcra.py. Code t.
  Each rate of a limit has its own measure, a capacity and the time of one unit (over / under), all in microseconds.
  a, b   headroom and capacity; a claim's size is in microseconds too
  c      "over/under" of one unit; if live control replaced the declared rate, also " capacity over under" of that rate
  Key    the TAT, integer microseconds; "TAT debt" if a settled cost left the bucket beyond empty; "TAT debt capacity
         over under" if the measure is not the declared one
]]
local MOST_DEBT_CAPACITIES, MIN_CUT_US, MOST_DEBT_US = 60, 3600000000, 316224000000000

local function most_debt(capacity)
  return math.min(math.max(MOST_DEBT_CAPACITIES * capacity, MIN_CUT_US), MOST_DEBT_US)
end

-- Returns the microseconds of one unit, over / under.
local function fraction(c)
  if not c.over then
    local over, under = string.match(c.c, '^(%d+)/?(%d*)')
    c.over, c.under = tonumber(over), tonumber(under) or 1
  end
  return c.over, c.under
end

-- Returns the measure at the end of a text, or nothing. `other`: whether it differs from the claim's measure.
local function measure_in(c, text)
  local capacity, over, under = string.match(text, '^%S* (%d+) (%d+) (%d+)$')
  if not capacity then return end
  local own_over, own_under = fraction(c)
  local of = {capacity = tonumber(capacity), over = tonumber(over), under = tonumber(under)}
  of.other = of.capacity ~= c.b or of.over ~= own_over or of.under ~= own_under
  return of
end

-- Returns the measure to store with a TAT; "" if it is that of the declared rate.
local function mark_of(c)
  if c.as_kept and c.mark_kept then return c.mark_kept end
  local home = measure_in(c, c.c)
  if not home or not home.other then return '' end
  local over, under = fraction(c)
  return ' ' .. whole(c.b) .. ' ' .. whole(over) .. ' ' .. whole(under)
end

-- Converts the state to the claim's measure. The bucket keeps its units, at most its burst, or its debt.
local function adopt(c, from)
  local over, under = fraction(c)
  local left = max(-c.debt, from.capacity - max(0, c.tat - now)) * 1.0
  left = max(math.min(math.floor(left * over / from.over * from.under / under), c.b), -most_debt(c.b))
  c.tat, c.debt, c.adopted = now + c.b - left, max(0, -left), true
end

algorithms.t = {
  read = function(c)
    local stored = redis.call('GET', c.key)
    if not stored then return end
    local from
    c.tat, c.debt, c.mark_kept = tonumber(stored), 0, ''
    if not c.tat then
      local tat, debt, rest = string.match(stored, '^(%d+) (%d+)(.*)$')
      c.tat, c.debt, c.mark_kept = tonumber(tat or nil), tonumber(debt or nil), rest
      from = rest and measure_in(c, rest)
      if not c.tat or rest ~= '' and not from then
        c.tat, c.mark_kept = nil, nil
        return
      end
    end
    c.stored = true
    if c.mark_kept == '' and string.find(c.c, ' ', 1, true) then from = measure_in(c, c.c) end
    local capacity = from and from.capacity or c.b
    if c.tat - now > capacity + c.debt + STALE then c.tat, c.debt, c.stale = now + capacity, 0, true end
    if from and from.other then
      if c.as_kept then c.from = from else adopt(c, from) end
    end
  end,
  exhaust = function(c, at)
    if not c.stored or c.tat < at + c.b then c.stored, c.tat, c.debt = true, at + c.b, 0 end
  end,
  there = function(c)
    local over, under = fraction(c)
    return math.floor(max(0, c.b - max(0, (c.tat or 0) - now)) * under / over)
  end,
  ready = function(c, n, at)
    if n == 0 then return max(at, (c.tat or 0) - c.a) end
    local over, under = fraction(c)
    return max(at, max(at, c.tat or 0) + time_of(n, over, under) - c.a)
  end,
  one = function(c, one)
    local over, under = fraction(c)
    one.size = quotient(over, under)
    one.a = max(0, c.a + c.size - one.size)
  end,
  charge = function(c)
    c.tat, c.debt = max(c.begins or now, c.tat or 0) + c.size, 0
    if c.begins then c.debt = max(0, c.tat - now - c.b) end  -- a grant ahead of its time leaves a debt until then
  end,
  settle = function(c)
    if not c.tat and c.by <= 0 then return false end
    local by, capacity = c.by, c.b
    if c.from then
      local over, under = fraction(c)
      capacity = c.from.capacity
      by = ceil(math.min(by, MOST_EXACT) * 1.0 * c.from.over / over * under / c.from.under)
    end
    c.tat = max(now, math.min(max(now, c.tat or 0) + by, now + capacity + most_debt(capacity)))
    c.debt = max(0, c.tat - now - capacity)
    return true
  end,
  keep = function(c)
    local owed = mark_of(c)
    if c.debt > 0 or owed ~= '' then owed = ' ' .. whole(c.debt) .. owed end
    redis.call('SET', c.key, whole(c.tat) .. owed, 'PX', ttl(c.tat))
  end,
  use = function(c) return 0, c.tat or now end,
  pace = function(c) return c.size end,
}
