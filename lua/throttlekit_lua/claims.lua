--[[
  Reads the claims of a request: each names a limit, a key and a cost. Runs after common.lua and the algorithms.

  KEYS[5i-4 .. 5i]  of claim i: the algorithm's state; record, order, entries, tags of its list: see waitlist.lua
  ARGV              of claim i: "code b;c;mark cost step lead queue tenant"; size; a. The first space is "~" if c is
                    more than one number, or if no job may wait
]]
local call, match, sub, concat = redis.call, string.match, string.sub, table.concat
local unpacked = table.unpack or unpack
-- The numbers in the record of a list. If one is not stored, it is 0; v is 1.
local FIELDS = {'from', 'paused', 'emptied', 'n', 'v', 'look', 'renewed', 'retry'}

-- Returns the record KEYS[k + 2]: the texts of FIELDS, the epoch, the slow-down and the owner's free threads, each nil or
-- false if it is not stored. If the server has evicted some keys of the list, deletes the others.
local function read_record(k, owner)
  local record, order, entries = KEYS[k + 2], KEYS[k + 3], KEYS[k + 4]
  local there = call('EXISTS', record, order, entries)
  if there == 0 then return {} end
  local texts = call('HMGET', record, 'epoch', 'slow', 'p' .. owner, unpacked(FIELDS))
  local was = {epoch = texts[1], slow = texts[2], free = texts[3] or nil}
  for i, field in ipairs(FIELDS) do was[field] = texts[i + 3] end
  if there == (was.epoch and 3 or (was.from or was.slow or was.retry) and 1) then return was end
  call('UNLINK', record, order, entries, KEYS[k + 5])
  return {}
end

-- Reads the claims, from ARGV[at] on, and the records of their lists. The requester is an owner, or "".
local function read_claims(at, requester)
  local found = {}
  for i = 1, math.floor(#KEYS / 5) do
    local k, n = 5 * (i - 1), at + 3 * (i - 1)
    local code, b, own, rest = match(ARGV[n], '^(%l)[ ~](%d+);([^;]*);(.*)$')
    local a, record = tonumber(ARGV[n + 2]), KEYS[k + 2]
    found[i] = {
      key = KEYS[k + 1], algorithm = algorithms[code], code = code, size = tonumber(ARGV[n + 1]), a = a, b = tonumber(b), c = own,
      rest = rest, declared_a = a, record = record, order = KEYS[k + 3], entries = KEYS[k + 4], tags = KEYS[k + 5],
      record_was = read_record(k, requester), requester = requester, own = {}, list = nil, is_read = false, turn = false, passes = now, till = now, first = true,
    }
  end
  return found
end
