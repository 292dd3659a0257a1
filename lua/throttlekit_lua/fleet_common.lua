--[[
  The first part of every script of the fleet: the clock, the format of numbers, and which limits have a history.

  KEYS[1]  of a history, sorted set: the key of each history, by the minute in which it was last written, in seconds

  Returns  nothing

  Writes   KEYS[1]. If it is full, a new limit replaces the one with the oldest report, if that is more than an hour old;
           otherwise the new limit gets no history
]]
local STEP, STEPS, KEPT, SILENT = 20, 5, 2592000, 3600
local function whole(x) return string.format('%.0f', x) end

local now = tonumber(redis.call('TIME')[1])
local step = math.floor(now / STEP)

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
