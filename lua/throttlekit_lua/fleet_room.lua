--[[
  Choose the limits that have a history. Runs before fleet_history.lua and fleet_shares.lua.

  KEYS[1]  sorted set: the key of each history, by the minute in which it was last written, in seconds

  Returns  nothing

  Writes   KEYS[1]. If it is full, a new limit replaces the one with the oldest report, if that is more than an hour old;
           otherwise the new limit gets no history
]]
local KEPT, SILENT = 2592000, 3600
local function whole(x) return string.format('%.0f', x) end

local now = tonumber(redis.call('TIME')[1])

-- Returns whether the limit with the history *key* has one, or can get one: at most *most* limits have one.
local function has_room(key, most)
  local written = tonumber(redis.call('ZSCORE', KEYS[1], key) or nil)
  if not written and redis.call('ZCARD', KEYS[1]) >= most then
    local known = redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')
    if tonumber(known[2]) > now - SILENT then return false end
    redis.call('ZREM', KEYS[1], known[1])
    redis.call('UNLINK', known[1])
  end
  if not written or written < now - 60 then redis.call('ZADD', KEYS[1], whole(now), key) end
  return true
end
