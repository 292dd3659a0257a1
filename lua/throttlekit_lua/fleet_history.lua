--[[
  Add counts to the history of limits: a process reports decisions, a reader reports waiting jobs. Decides nothing.
  Runs after fleet_common.lua.

  KEYS[1]    sorted set: each limit that has a history, by the minute in which it was last written, in seconds
  KEYS[2]    string of records: the minutes and hours in which any process reported
  KEYS[i+2]  string of records: the history of limit i

  A string has 1440 records of minutes, then 720 records of hours, 32 bytes each. Minute m since 1970 has record
  m % 1440, and hour h has record 1440 + h % 720. A record of an earlier lap is replaced. The fields of a record are
  unsigned integers, which keep their highest value instead of overflowing:

    lap: m / 1440 or h / 720 (16 bits), units (40), granted (28), arrived (28), denied (28), paused (24), 429s (8),
    rate (36), longest wait in tenths of a second (24), most waiting jobs plus 1 (24)

  The last field of the string is the minute in which it was created (32 bits): earlier counts are unknown.

  ARGV[1]    the counts, as JSON: {{units, granted, arrived, denied, paused, 429s, rate, wait, waiting}, …}, in the
             order of the keys; see throttlekit/fleet/history.py
  ARGV[2]    "1" if a process reports, "0" if a reader reports

  Returns  nothing

  Writes   KEYS[2] and KEYS[i+2], which expire 30 days after the last write, and KEYS[1], which has the names of at most
           200 of these keys
]]
local MINUTES, HOURS, BYTES, MOST = 1440, 720, 32, 200
local WIDTHS = {'u16', 'u40', 'u28', 'u28', 'u28', 'u24', 'u8', 'u36', 'u24', 'u24'}
local STARTS, LAP, RATE, WAIT, WAITING = {0, 16, 56, 84, 112, 140, 164, 172, 208, 232}, 1, 8, 9, 10
local CHANGED = 68719476735
local spread = table.unpack or unpack

-- Returns the rate of a record, or CHANGED if it had different rates.
local function rate_of(known, new)
  new = math.min(new, CHANGED - 1)
  if new == 0 or known == new then return known end
  return known == 0 and new or CHANGED
end

-- Returns the records of the current minute and hour.
local minute, hour = math.floor(now / 60), math.floor(now / 3600)
local RECORDS = {
  {at = minute % MINUTES, lap = math.floor(minute / MINUTES)},
  {at = MINUTES + hour % HOURS, lap = math.floor(hour / HOURS)},
}
local READ = {}
for _, record in ipairs(RECORDS) do
  record.starts = {}
  for field, start in ipairs(STARTS) do record.starts[field] = whole(record.at * BYTES * 8 + start) end
  for _, field in ipairs({LAP, RATE, WAIT, WAITING}) do
    READ[#READ + 1], READ[#READ + 2], READ[#READ + 3] = 'GET', WIDTHS[field], record.starts[field]
  end
end

local function add(key, counts)
  if redis.call('EXISTS', key) == 0 then
    -- Write the last field first: then the string is not enlarged later.
    redis.call('BITFIELD', key, 'SET', 'u32', whole((MINUTES + HOURS) * BYTES * 8), whole(minute))
  end
  local known, write = redis.call('BITFIELD', key, spread(READ)), {'OVERFLOW', 'SAT'}
  for i, record in ipairs(RECORDS) do
    local lap, rate, wait, waiting = spread(known, 4 * i - 3, 4 * i)
    local function put(verb, field, value)
      local n = #write
      write[n + 1], write[n + 2], write[n + 3], write[n + 4] = verb, WIDTHS[field], record.starts[field], whole(value)
    end
    if lap ~= record.lap then
      redis.call('SETRANGE', key, whole(record.at * BYTES), string.rep('\0', BYTES))
      rate, wait, waiting = 0, 0, 0
      put('SET', LAP, record.lap)
    end
    for field = 2, 7 do
      if counts[field - 1] ~= 0 then put('INCRBY', field, counts[field - 1]) end
    end
    if rate_of(rate, counts[7]) ~= rate then put('SET', RATE, rate_of(rate, counts[7])) end
    if counts[8] > wait then put('SET', WAIT, counts[8]) end
    if counts[9] > waiting then put('SET', WAITING, counts[9]) end
  end
  if #write > 2 then redis.call('BITFIELD', key, spread(write)) end
end

if ARGV[2] == '1' then
  add(KEYS[2], {0, 0, 0, 0, 0, 0, 0, 0, 0})
  redis.call('EXPIRE', KEYS[2], whole(KEPT))
end
for i, each in ipairs(cjson.decode(ARGV[1])) do
  if has_room(KEYS[i + 2], MOST) then
    add(KEYS[i + 2], each)
    redis.call('EXPIRE', KEYS[i + 2], whole(KEPT))
  end
end
redis.call('EXPIRE', KEYS[1], whole(KEPT))
