--[[
  The first part of every script: the clock, and the format of numbers.

  Every number sent to the server has this format: tostring keeps 14 digits, and some servers print 1e+08.
]]
local KEPT, RETRY_SPREAD, STALE = 5000000, 60000000, 60000000
local MOST_TAG, FURTHEST, MOST_EXACT = 9007199254740990, 3155760000000000, 9007199254740992
local format, max, ceil = string.format, math.max, math.ceil

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- '%d' takes a third of the time of '%.0f', but truncates great numbers on servers where C's `long` has 32 bits.
local instant = format('%d', now)
local INTEGER, WIDE = '%.0f', '%016.0f'
if #instant > 11 then INTEGER, WIDE = '%d', '%016d' end
