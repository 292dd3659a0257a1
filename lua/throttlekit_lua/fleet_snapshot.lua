--[[
  What the fleet reported in the last minute: each limit, and the keys with most demand. Bounded, however many there are.

  KEYS       as in fleet_report.lua
  KEYS[2]    keys with a waiting line, by the last due instant in it
  KEYS[3]    hash of each limit: "seconds definition"
  KEYS[4]    processes, by when last heard of
  KEYS[i+1]  of 20 seconds: units that passed, by key
  KEYS[i+2]  of 20 seconds: denials, by key
  KEYS[i+3]  of 20 seconds: hash of counts, by "code limit" and "code key"; see fleet_report.lua

  ARGV[1]    how many keys to return
  ARGV[2]    which first, by code: l those with the longest lines, d most denied, p most passed
  ARGV[3]    text that the limit's name has in it, quoted as in keys; "" for all
  ARGV[4]    0: without the counts of limits

  Returns  {seconds now, {process, …}, {limit, "seconds definition", …}, {limit or key, {code, count, …}, …}}
           The counts are of the last 60 seconds, as text. Of keys there is no a: u is what passed

  Writes   nothing
]]
local STEP, STEPS, HOUR, HEARD, DEEP = 20, 5, 3600, 15, 1000
local CODES, UNITS = 'auselyfpw', 2
local function whole(x) return string.format('%.0f', x) end

local now = tonumber(redis.call('TIME')[1])
local most, sought = tonumber(ARGV[1]), ARGV[3]
local depth = whole((sought == '' and most or DEEP) - 1)

-- The steps that reach into the last minute, and how much of each does.
local steps, running = {}, math.floor(now / STEP)
for back = 0, 3 do
  local weight = back < 3 and 1 or 1 - (now - running * STEP) / STEP
  local at = 6 + 3 * ((running - back) % STEPS)
  steps[#steps + 1] = {passed = KEYS[at + 1], denied = KEYS[at + 2], counts = KEYS[at + 3], weight = weight}
end

local function is_sought(name) return sought == '' or string.find(name, sought, 1, true) end

local function counts(of, is_key)
  local sum, reply = {}, {}
  for _, step in ipairs(steps) do
    local passed = is_key and tonumber(redis.call('ZSCORE', step.passed, of) or nil)
    local found = redis.call('HMGET', step.counts, 'a ' .. of, 'u ' .. of, 's ' .. of, 'e ' .. of, 'l ' .. of, 'y ' .. of,
      'f ' .. of, 'p ' .. of, 'w ' .. of)
    for i = 1, #CODES do
      local count, before = i == UNITS and passed or tonumber(found[i] or nil) or 0, sum[i] or 0
      sum[i] = i == #CODES and math.max(before, count) or before + count * step.weight
    end
  end
  for i = 1, #CODES do
    if sum[i] ~= 0 then reply[#reply + 1], reply[#reply + 2] = string.sub(CODES, i, i), whole(sum[i]) end
  end
  return reply
end

local limits, definitions, reply = redis.call('HGETALL', KEYS[3]), {}, {}
for i = 1, #limits, 2 do
  local seconds = tonumber(string.match(limits[i + 1], '^%d+')) or 0
  if seconds >= now - HOUR and is_sought(string.match(limits[i], '^[^:]*')) then
    definitions[#definitions + 1], definitions[#definitions + 2] = limits[i], limits[i + 1]
    if ARGV[4] ~= '0' then reply[#reply + 1], reply[#reply + 2] = limits[i], counts(limits[i]) end
  end
end

local chosen, known = 0, {}
local function choose(names)
  for _, name in ipairs(names) do
    if chosen == most then return end
    if not known[name] and is_sought(string.match(name, '{([^:]*)') or '') then
      known[name], chosen = true, chosen + 1
      reply[#reply + 1], reply[#reply + 2] = name, counts(name, true)
    end
  end
end
local function ranked(kind)
  local sum, names = {}, {}
  for _, step in ipairs(steps) do
    local found = redis.call('ZREVRANGE', step[kind], '0', depth, 'WITHSCORES')
    for i = 1, #found, 2 do
      if not sum[found[i]] then names[#names + 1] = found[i] end
      sum[found[i]] = (sum[found[i]] or 0) + tonumber(found[i + 1]) * step.weight
    end
  end
  table.sort(names, function(a, b) return sum[a] > sum[b] or sum[a] == sum[b] and a < b end)
  return names
end
for which in string.gmatch(ARGV[2], '.') do
  if chosen == most then break end
  if which == 'l' then
    choose(redis.call('ZREVRANGEBYSCORE', KEYS[2], '+inf', whole(now * 1000000), 'LIMIT', '0', depth + 1))
  elseif which == 'd' then choose(ranked('denied'))
  else choose(ranked('passed')) end
end

return {whole(now), redis.call('ZRANGEBYSCORE', KEYS[4], whole(now - HEARD), '+inf'), definitions, reply}
