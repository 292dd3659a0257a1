--[[
  The interface that every algorithm implements, and shared arithmetic. Runs after clock.lua.

  A claim c has a key, a size (0 only peeks), and three parameters of its algorithm: a, b, c. Each algorithm adds a
  table to `algorithms`, with these functions:

  read(c)        reads the state of claim c, and sets c.stored: there is a state; c.stale: the state is impossible,
                 and was replaced; c.adopted: the state was written at another rate, and was converted to this rate.
                 With c.as_kept, the state is not converted
  there(c)       returns how many units are free now
  ready(c, n, at)  returns the earliest time, from `at` and now on, at which c passes, if n other units pass before it
  charge(c)      charges c.size
  settle(c)      corrects the charge of c.granted by c.by units: more if positive, fewer if negative
  keep(c)        writes the changes of charge, settle or read
  exhaust(c, at)  sets the state as if the units of one period had been used evenly until `at`
  use(c)         returns the number of units in use, and the time at which the limit is full again
  estimates      true if no clock determines when units become free, as for slots: a job may pass before its estimate
  pace(c)        returns how long the limit needs, at its rate, for the units of c
  c.held         true if the workflow of c already holds the slot: c takes no unit, and passes ahead of waiting jobs

  Additional functions, if jobs hold slots and release them:

  release(c)     releases the slots of the holder c.c; returns whether it held any
  renew(c)       renews the lease of the holder c.c, or takes free slots again; returns whether it has slots now

  If a claim of one unit does not have a size of 1, or has other parameters:

  one(c, one)    turns `one`, a copy of c with a size of 1, into a claim of one unit

  If the number of slots adapts to latency:

  drop(c, at)    reports the failure of a job that was granted at `at`, or nil; returns whether the state changed
]]
local function whole(x) return format(INTEGER, x) end
local function ttl(last) return whole(max(1, ceil((last - now + KEPT) / 1000))) end

-- x / y, rounded up. With doubles, the quotient of great numbers may be rounded to a whole number before ceil sees it.
local function quotient(x, y)
  local rest = math.fmod(x, y)
  return (x - rest) / y + (rest > 0 and 1 or 0)
end

-- The time of n units, n × over / under, rounded up. It is exact even if a double cannot represent n × over exactly.
local function time_of(n, over, under)
  if n * 1.0 * over <= MOST_EXACT then return quotient(n * over, under) end
  local rest, part = math.fmod(n, under), math.fmod(over, under)
  return (n - rest) / under * over + rest * ((over - part) / under) + quotient(rest * part, under)
end

local algorithms = {}
