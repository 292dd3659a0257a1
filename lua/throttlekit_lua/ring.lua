--[[
  Numbers of 7 bytes: the key of a sliding log consists of these. Runs after clock.lua.
]]
local function bytes(x)
  local low, high, floor = x % 16777216, math.floor(x / 16777216), math.floor
  return string.char(floor(high / 16777216), floor(high / 65536) % 256, floor(high / 256) % 256, high % 256,
    floor(low / 65536), floor(low / 256) % 256, low % 256)
end
local function number(text, i)
  local p, q, r, s, t, u, v = string.byte(text, 7 * i + 1, 7 * i + 7)
  return v and ((p * 256 + q) * 256 + r) * 4294967296 + ((s * 256 + t) * 256 + u) * 256 + v or 0
end

-- Returns the bytes of some numbers, from c.all if the whole key has been read. After its end, `number` returns 0.
local function get(c, at, count)
  if c.all then return string.sub(c.all, 7 * at + 1, 7 * (at + count)) end
  return redis.call('GETRANGE', c.key, format(INTEGER, 7 * at), format(INTEGER, 7 * (at + count) - 1))
end
