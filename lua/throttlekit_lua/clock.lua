--[[
  The head of every script: the clock, and how numbers are written.

  Every number handed to the server goes through one format: tostring keeps 14 digits, and some servers print 1e+08.
]]
local KEPT, GUESTS, STALE, LOOK, LAST_TAG = 5000000, 60000000, 60000000, 500000, 4503599627370496
local AT_DOOR, MEAN_ONE, MEAN_PART, MOST_TAG = 8, 1024, 32, 9007199254740990
local FURTHEST, MOST_EXACT = 3155760000000000, 9007199254740992
-- The numbers of a line in which no job waits, and that is neither paused nor slowed down: what stands before the instant
-- of the next guest, v, the instant of the last look, that of the guest, what stands behind it, and the last instant.
-- Their end, which is sooner found.
local QUIET = '^([1-9]%d* (%d+) %d+ %d+ %d+ %d+ %d+ %d+ %d+ %d+ (%d+) %d+ %d+ 0 0 0 )(%d+)( (%d+) %d+ 0 %x+)$'
local NO_JOBS = ' 0 %x+$'
local format, max, ceil = string.format, math.max, math.ceil

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- '%d' takes a third of the time of '%.0f', but cuts off what a long of C with 32 bits cannot hold.
local instant = format('%d', now)
local INTEGER = #instant > 11 and '%d' or '%.0f'
