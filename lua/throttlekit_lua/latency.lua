--[[
  Slots whose number adapts to the latency of jobs. Mirrors throttlekit/_core/algorithms/concurrency.py. Code a.
  Also mirrors throttlekit/_core/latency.py, which explains the algorithm. Runs after concurrency.lua.
  a, b, c  amount; lease, microseconds; and "floor timeout holder". read() sets c.a to the current number of slots, and
           c.c to the holder
  Key      the sorted set of concurrency.lua, and each name in GAUGE with minus its value as its score
]]
local FIRST_ROUND, SHORTEST_ROUND, LONGEST_ROUND, EVERY = 16, 32, 4096, 16
local LONGEST_HOLD, REMEMBERED = 86400000000, 3600000000
local FASTER, SLOWER = 115, 130
local GAUGE = {'slots', 'base', 'sum', 'spread', 'holds', 'skip', 'peak', 'rounds', 'fell'}

local function in_bounds(c) return max(c.floor, math.min(c.declared, c.gauge.slots)) end

local function slots_of(c)
  local gauge = c.gauge
  if not gauge then return c.floor end
  local slots = in_bounds(c)
  return gauge.rounds == EVERY and max(c.floor, math.floor(slots * 7 / 10)) or slots
end

-- Begins a round with a new number of slots. The last round had `before` slots.
local function next_round(c, before, slots)
  local gauge = c.gauge
  gauge.slots = max(c.floor, math.min(c.declared, slots))
  gauge.sum, gauge.spread, gauge.holds, gauge.skip, gauge.peak = 0, 0, 0, 0, 0
  if gauge.slots == c.floor then gauge.fell = 0 end
  if slots_of(c) ~= before then gauge.skip = before end
end

local function judge(c, slots)
  local gauge = c.gauge
  local mean = math.floor(gauge.sum / gauge.holds)
  local off = math.floor(math.floor(5 * gauge.spread / (4 * gauge.holds)) / math.sqrt(gauge.holds))
  local after, measures = in_bounds(c), gauge.rounds >= EVERY
  if gauge.base == 0 then gauge.base = mean end
  if measures or slots == c.floor or mean + 3 * off < gauge.base then
    gauge.base = max(1, math.floor((gauge.base + mean) / 2))
  end
  local base = gauge.base
  gauge.rounds = measures and 0 or gauge.rounds + 1
  if not measures then
    if slots > c.floor and mean > math.floor(base * SLOWER / 100) + 2 * off then
      after = max(math.floor(after / 2), math.floor(after * (0.9 * base / mean) + 0.5))
      gauge.fell, gauge.rounds = now, EVERY + 1
    elseif mean > math.floor(base * FASTER / 100) + off then
      if gauge.fell == 0 then gauge.fell = now end
    elseif gauge.peak >= slots then
      after = after + (gauge.fell > 0 and max(1, math.floor(after / 16)) or after)
    end
  end
  if gauge.rounds == EVERY and gauge.peak < slots then gauge.rounds = EVERY - 1 end
  next_round(c, slots, after)
end

-- Returns a gauge with the `known` measurements.
local function gauge_of(known)
  local gauge = {}
  for _, field in ipairs(GAUGE) do gauge[field] = known[field] or 0 end
  return gauge
end

-- Counts a hold that has ended, and its duration.
local function measure(c, held)
  c.learnt, c.gauge = true, c.gauge or gauge_of({slots = c.floor})
  local gauge = c.gauge
  gauge.peak = max(gauge.peak, c.live)
  if gauge.skip > 0 then
    gauge.skip = gauge.skip - 1
    return
  end
  held = math.min(held, LONGEST_HOLD)
  if gauge.holds > 0 then
    gauge.spread = gauge.spread + math.abs(held - math.floor(gauge.sum / gauge.holds))
  end
  gauge.sum, gauge.holds = gauge.sum + held, gauge.holds + 1
  local slots = slots_of(c)
  local shortest = gauge.fell > 0 and SHORTEST_ROUND or FIRST_ROUND
  if gauge.holds >= math.min(max(shortest, 2 * slots), LONGEST_ROUND) then judge(c, slots) end
end

-- Reduces the number of slots after a job has failed. Returns whether the state changed.
local function drop(c, granted)
  local gauge = c.gauge
  if not gauge or granted and gauge.fell <= now and granted < gauge.fell then return false end
  local before, after = slots_of(c), math.floor(in_bounds(c) * 9 / 10)
  gauge.fell, c.learnt = now, true
  next_round(c, before, after)
  return true
end

local all = algorithms.c
algorithms.a = {
  read = function(c)
    local floor, timeout, holder = string.match(c.c, '^(%d+) (%d+) (.*)$')
    c.declared, c.spec, c.floor, c.timeout, c.c = c.a, c.c, tonumber(floor), tonumber(timeout), holder
    all.read(c)
    local known = {}
    for i = 1, #c.kept, 2 do known[string.sub(c.kept[i], 2)] = -tonumber(c.kept[i + 1]) end
    c.gauge = known.slots and gauge_of(known)
    c.a = slots_of(c)
  end,
  exhaust = all.exhaust,
  there = all.there,
  ready = all.ready,
  charge = function(c)
    local ended = redis.call('ZREVRANGEBYSCORE', c.key, whole(now), '(0', 'WITHSCORES', 'LIMIT', '0', '1')
    if ended[2] then drop(c, tonumber(ended[2]) - c.b) end
    all.charge(c)
  end,
  settle = all.settle,
  release = function(c)
    if not all.release(c) then return false end
    local held = now - c.granted
    if c.timeout > 0 and held >= c.timeout then drop(c, c.granted)
    elseif held > 0 then measure(c, held) end
    return true
  end,
  renew = all.renew,
  drop = drop,
  one = function(c, one) one.a = slots_of(c) end,
  keep = function(c)
    all.keep(c)
    local gauge = c.gauge
    if c.learnt then
      redis.call('ZADD', c.key, whole(0 - gauge.slots), ':slots', whole(0 - gauge.base), ':base', whole(0 - gauge.sum), ':sum',
        whole(0 - gauge.spread), ':spread', whole(0 - gauge.holds), ':holds', whole(0 - gauge.skip), ':skip',
        whole(0 - gauge.peak), ':peak', whole(0 - gauge.rounds), ':rounds', whole(0 - gauge.fell), ':fell')
    end
    local last = ttl(max(c.full, now + REMEMBERED))
    redis.call('PEXPIRE', c.key, last)
  end,
  use = all.use,
  estimates = true,
  pace = all.pace,
}
