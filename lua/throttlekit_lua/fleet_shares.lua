--[[
  Record the units that each tenant of a limit got from the grants of one process. Decides nothing. Runs after
  fleet_common.lua.

  KEYS[1]    sorted set: each limit that has such a history, by the minute in which it was last written, in seconds
  KEYS[i+1]  hash: the history of limit i

  A hash has a record for each of 61 minutes, 145 spans of ten minutes and 181 spans of four hours: one more than a
  chart has bars, because the oldest may be replaced while a reader reads it. Span n of s seconds since 1970 has the
  field "s:" .. n % size. A record is text: "n others units:tenant units+debt:tenant …". "others" are the units of all
  tenants that the record does not name.

  The record of the current minute names at most 32 tenants. A 33rd replaces the tenant with the least units + debt: the
  units of the old tenant are added to "others", and the new one starts with this sum as its debt (the algorithm
  "Space-Saving" of Metwally, Agrawal and El Abbadi, 2005). So each tenant with more than 1/32 of the units is named,
  and its units are too low by at most 1/32 of all. The first report of a later minute finishes the minute: its record
  keeps the 8 tenants with the most units (of equals the first), and is added to its ten minutes and its four hours.
  Until then field "last" is the number of this minute, and readers finish it in memory: throttlekit/fleet/shares.py
  mirrors `parsed`, `add` and `largest`. Change both. Field "begun" is the minute in which the hash was created.

  ARGV[1]    the counts, as JSON: {{others, {{tenant, units}, …}}, …}, in the order of the keys

  Returns  nothing

  Writes   KEYS[i+1], which expire 30 days after the last write, and KEYS[1], which has the names of at most 50 of these
           keys
]]
local MINUTES, LONGER, RUNNING, NAMED = {60, 61}, {{600, 145}, {14400, 181}}, 32, 8
local MOST = 50

local minute = math.floor(now / 60)

-- Returns the units of the others, and the tenants, each {units, debt, name, position, text}, from the record of span
-- *number*; 0 and {} if the record is of another span.
local function parsed(record, number)
  local of, others, rest = string.match(record or '', '^(%d+) (%d+)(.*)$')
  local tenants = {}
  if tonumber(of) ~= number then return 0, tenants end
  for text, units, debt, name in string.gmatch(rest, ' ((%d+)%+?(%d*):([^ ]*))') do
    tenants[#tenants + 1] = {tonumber(units), tonumber(debt) or 0, name, #tenants + 1, text}
  end
  return tonumber(others), tenants
end

local function written(number, others, tenants)
  local parts = {whole(number) .. ' ' .. whole(others)}
  for i, each in ipairs(tenants) do
    parts[i + 1] = each[5] or whole(each[1]) .. (each[2] > 0 and '+' .. whole(each[2]) or '') .. ':' .. each[3]
  end
  return table.concat(parts, ' ')
end

-- Keeps the 8 of *tenants* with the most units, and adds the units of the rest to those of the others.
local function largest(others, tenants)
  table.sort(tenants, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[4] < b[4]) end)
  for i = #tenants, NAMED + 1, -1 do others = others + table.remove(tenants, i)[1] end
  for _, each in ipairs(tenants) do each[2], each[5] = 0, nil end
  return others, tenants
end

-- Adds the units of *added*, {{tenant, units}, …}, to *tenants*. Returns the units of tenants that were replaced.
local function add(tenants, added)
  local known, replaced = {}, 0
  for _, each in ipairs(tenants) do known[each[3]] = each end
  for _, one in ipairs(added) do
    local name, units = one[1], one[2]
    local seen = known[name]
    if seen then
      seen[1], seen[5] = seen[1] + units, nil
    elseif #tenants < RUNNING then
      seen = {units, 0, name, #tenants + 1}
      tenants[#tenants + 1] = seen
    else
      seen = tenants[1]
      for _, each in ipairs(tenants) do
        if each[1] + each[2] < seen[1] + seen[2] then seen = each end
      end
      replaced, known[seen[3]] = replaced + seen[1], nil
      seen[1], seen[2], seen[3], seen[5] = units, seen[1] + seen[2], name, nil
    end
    known[name] = seen
  end
  return replaced
end

local function add_to(key, ring, number, others, added)
  local field = whole(ring[1]) .. ':' .. whole(number % ring[2])
  local sum, tenants = parsed(redis.call('HGET', key, field) or nil, number)
  sum = sum + others + add(tenants, added)
  redis.call('HSET', key, field, written(number, sum, tenants))
end

-- Finishes minute *number*, which has ended.
local function finish(key, number)
  local field = whole(MINUTES[1]) .. ':' .. whole(number % MINUTES[2])
  local others, tenants = largest(parsed(redis.call('HGET', key, field) or nil, number))
  redis.call('HSET', key, field, written(number, others, tenants))
  local added = {}
  for i, each in ipairs(tenants) do added[i] = {each[3], each[1]} end
  for _, ring in ipairs(LONGER) do add_to(key, ring, math.floor(number * 60 / ring[1]), others, added) end
end

for i, each in ipairs(cjson.decode(ARGV[1])) do
  local key = KEYS[i + 1]
  if has_room(key, MOST) then
    local last = tonumber(redis.call('HGET', key, 'last') or nil)
    if last ~= minute then
      if last then finish(key, last) else redis.call('HSET', key, 'begun', whole(minute)) end
      redis.call('HSET', key, 'last', whole(minute))
    end
    add_to(key, MINUTES, minute, each[1], each[2])
    redis.call('EXPIRE', KEYS[i + 1], whole(KEPT))
  end
end
redis.call('EXPIRE', KEYS[1], whole(KEPT))
