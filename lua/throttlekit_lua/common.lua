--[[
  The head of every script: the clock, and how things are written. Each algorithm adds itself to `algorithms`:

  read(c)        reads what is stored of claim c, if it can be true; c.stored: something is stored,
                 c.stale: what is stored cannot be true, and something else was taken in its place
  ready(c)       the earliest instant at which c passes if no other request comes
  charge(c)      takes c.size
  settle(c)      takes c.by more, or gives back, of what was taken at c.granted
  keep(c)        writes what charge, settle or read changed
  exhausted(c, at)  as if all that passes in one period had passed, evenly, up to `at`
  use(c)         what is used, and until when it counts
  busy_until(c)  until when a waiting line has kept the limit busy

  Where slots are held until they are given back, `estimates` is true, and there is besides:

  distance(c)    from this instant of its line to the next
  release(c)     gives back what c.c holds; returns whether it held any
  renew(c)       keeps what c.c holds, or takes what is free; returns whether it holds any now

  A claim c has its key, its size (0 only looks) and three numbers of its algorithm: a, b, c.

  Every number handed to the server goes through `whole`: tostring keeps 14 digits, and some servers print 1e+08.
]]
local GRACE, GUESTS, STALE = 5000000, 60000000, 60000000
local format, max, ceil = string.format, math.max, math.ceil

-- '%d' takes a third of the time of '%.0f', but not where a long of C has 32 bits.
local INTEGER = format('%d', 9007199254740992) == '9007199254740992' and '%d' or '%.0f'
local function whole(x) return format(INTEGER, x) end

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function ttl(last) return whole(max(1, ceil((last - now + GRACE) / 1000))) end

local LINE = '^(%d+) (%d+) (%d+) ?(%d*) ?(%d*)$'

-- Until when, and from when, a line is paused. A pause that a later clock began begins now, at its full length.
local function pause_of(paused, from)
  paused, from = tonumber(paused or nil) or 0, tonumber(from or nil) or 0
  if from > now then return now + paused - from, now, true end
  return paused, from, false
end

-- A pause is kept until nothing counts any more of what is taken to have passed before it.
local function keep_line(c, line, paused, from, full)
  local text = whole(line[1]) .. ' ' .. whole(line[2]) .. ' ' .. whole(line[3])
  local last = max(line[1], line[2], line[3])
  if paused > 0 then text, last = text .. ' ' .. whole(paused) .. ' ' .. whole(from), max(last, paused, full) end
  redis.call('SET', c.line_key, text, 'PX', ttl(last))
end

-- Writes the line as it stands, if its pause has begun anew. Other writes of the line take this one's place.
local function keep_moved(c)
  if not c.moved then return end
  local _, full = c.of.use(c)
  keep_line(c, c.line, c.paused, c.from, full)
end

-- Writes what is taken in place of stale state, without what a pause adds to it.
local function mend(c)
  local fresh = {key = c.key, of = c.of, size = 0, a = c.a, b = c.b, c = c.c}
  c.of.read(fresh)
  c.of.keep(fresh)
end

local algorithms = {}
