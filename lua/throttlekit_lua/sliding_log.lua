--[[
  The times of the last units. Mirrors throttlekit/_core/algorithms/sliding_log.py. Code l.
  a, b   amount and period, microseconds
  Key    numbers, see ring.lua. [0] head + amount × count: the index of the oldest unit in the ring, and the units in
         the window at the last write (0 if units were moved since); [1] the time until which the window has more units
         than the log; from [2] on, a ring of `amount` times, microseconds; 0 for a unit not used, or returned
]]
local PIECE = 1000  -- units per write or move: one long text costs the server far more than several short ones

local function put(c, at, text)
  redis.call('SETRANGE', c.key, whole(7 * at), text)
end

-- Returns the time of group `g`, if all units count as used evenly until `c.even`, in `c.groups` groups.
local function group(c, g) return math.max(1, c.even - c.b + math.ceil((g + 1) * c.b / c.groups)) end

-- Return the time of the unit at index `i`, where 0 is the oldest: `kept` as it is stored, `unit` as it counts.
local function kept(c, i) return c.stale and now or number(get(c, 2 + (c.head + i) % c.a, 1), 0) end
local function unit(c, i)
  return c.even and math.max(kept(c, i), group(c, math.floor(i * c.groups / c.a))) or kept(c, i)
end
-- Returns the first index in [low, high) whose unit is later than `at`, or `high`.
local function later(c, at, of, low, high)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if of(c, middle) <= at then low = middle + 1 else high = middle end
  end
  return low
end
local function count_until(c, at) return later(c, at, unit, 0, c.a) end

-- `units` reads the bytes of `n` units from index `i` on, and `write` writes such bytes, across the end of the ring.
local function units(c, i, n)
  local at = (c.head + i) % c.a
  local first = math.min(n, c.a - at)
  return get(c, 2 + at, first) .. get(c, 2, n - first)
end
local function write(c, i, instants)
  local at = (c.head + i) % c.a
  local first = 7 * math.min(#instants / 7, c.a - at)
  put(c, 2 + at, string.sub(instants, 1, first))
  if first < #instants then put(c, 2, string.sub(instants, first + 1)) end
end

-- Sets `n` units from index `i` on to one time. It starts with the last unit, so the key is enlarged only once.
local function fill(c, i, n, instant)
  local piece = string.rep(bytes(instant), math.min(n, PIECE))
  while n > 0 do
    local count = math.min(n, PIECE)
    n = n - count
    write(c, i + n, string.sub(piece, 1, 7 * count))
  end
end

-- Writes the times of the groups to all units whose own time is earlier.
local function write_all(c)
  for g = c.groups - 1, 0, -1 do
    local first, past = math.ceil(g * c.a / c.groups), math.ceil((g + 1) * c.a / c.groups)
    local instant = c.stale and math.max(now, group(c, g)) or group(c, g)
    local all = kept(c, past - 1) <= instant
    fill(c, first, (all and past or later(c, instant, kept, first, past)) - first, instant)
  end
  put(c, 0, bytes(c.head) .. bytes(c.owed))
  c.even, c.stale = nil, false
end

algorithms.l = {
  read = function(c)
    c.head, c.owed, c.newest, c.push = 0, 0, 0, 0
    local head = get(c, 0, 2)
    if #head < 14 then return end
    c.stored, c.head, c.owed = true, number(head, 0) % c.a, number(head, 1)
    c.newest = unit(c, c.a - 1)
    if c.newest - now > STALE then
      c.stale, c.head, c.owed, c.newest, c.even, c.groups = true, 0, 0, now, now, 1
    end
  end,
  exhaust = function(c, at)
    c.stored, c.newest, c.even, c.groups = true, math.max(at, c.newest), at, math.min(c.a, 64)
  end,
  there = function(c) return c.a - algorithms.l.use(c) end,
  ready = function(c, n, at)
    local number = n + c.size - 1
    local last = number % c.a
    local free = c.stored and math.max(at, unit(c, last) + c.b) or at
    return free + (number - last) / c.a * c.b
  end,
  charge = function(c) c.newest, c.push = math.max(now, c.newest), c.size end,
  settle = function(c)
    if c.by > 0 then
      c.newest, c.push = math.max(now, c.newest), math.min(c.by, c.a)
      local forgotten = (c.by > c.a and c.newest or unit(c, c.push - 1)) + c.b
      if forgotten > now then c.owed = math.max(c.owed, forgotten) end
      return true
    end
    if not c.stored or c.by == 0 or now < c.owed then return false end
    local last = count_until(c, c.granted)
    if last == 0 or unit(c, last - 1) + c.b <= now then return false end
    if c.stale then write_all(c) end
    -- Move older units to the places of the returned units, so that the oldest places become free.
    local back = math.min(-c.by, last)
    local empty = later(c, 0, kept, 0, last - back)
    local older = last - back - empty
    while older > 0 do
      local count = math.min(older, PIECE)
      older = older - count
      write(c, empty + older + back, units(c, empty + older, count))
    end
    fill(c, empty, back, 0)
    put(c, 0, bytes(c.head) .. bytes(c.owed))
    c.newest = unit(c, c.a - 1)
    return true
  end,
  keep = function(c)
    if c.even then write_all(c) end
    if c.push > 0 then
      c.units = c.a - count_until(c, now - c.b) + c.push
      fill(c, 0, c.push, c.newest)
      c.stored, c.head, c.push = true, (c.head + c.push) % c.a, 0
      put(c, 0, bytes(c.head + c.a * math.min(c.units, c.a)) .. bytes(c.owed))
    end
    local last = ttl(c.newest > 0 and c.newest + c.b or now)
    redis.call('PEXPIRE', c.key, last)
  end,
  use = function(c)
    if c.newest == 0 then return 0, now end
    return c.units or c.a - count_until(c, now - c.b), c.newest + c.b
  end,
  pace = function(c) return time_of(c.size, c.b, c.a) end,
}
