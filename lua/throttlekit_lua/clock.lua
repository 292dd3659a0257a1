--[[
  The head of every script: the clock, and how numbers are written.

  Every number handed to the server goes through `whole`: tostring keeps 14 digits, and some servers print 1e+08.
]]
local KEPT, GUESTS, STALE = 5000000, 60000000, 60000000
local format, max, ceil = string.format, math.max, math.ceil

-- '%d' takes a third of the time of '%.0f', but not where a long of C has 32 bits.
local INTEGER = format('%d', 9007199254740992) == '9007199254740992' and '%d' or '%.0f'
local function whole(x) return format(INTEGER, x) end

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function ttl(last) return whole(max(1, ceil((last - now + KEPT) / 1000))) end
