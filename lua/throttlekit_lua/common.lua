--[[
  What the scripts of decisions have in common. Runs after clock.lua. Each algorithm adds itself to `algorithms`:

  read(c)        reads what is stored of claim c, if it can be true; c.stored: something is stored,
                 c.stale: what is stored cannot be true, and something else was taken in its place,
                 c.adopted: another rate wrote it, and it is taken as it counts at this one; not where c.as_kept:
                 then everything stays in the measure of the rate that wrote it
  there(c)       how many units there are now
  ready(c, n, at)  the earliest instant from `at` on, not before now, at which c passes once n more units have passed
                 before it, and no other request comes
  charge(c)      takes c.size
  settle(c)      takes c.by more, or gives back, of what was taken at c.granted
  keep(c)        writes what charge, settle or read changed
  exhaust(c, at)  sets the state as if one period's units had been used, evenly, up to `at`
  use(c)         what is used, and until when it counts
  tight(c, t)    whether a unit that is not taken within t is lost
  estimates      true if no clock shows when units become free, as for slots: a job may pass before its estimate
  pace(c)        how long the limit takes, at its rate, to let c pass
  c.held         a job of its workflow holds the slot already: it takes nothing, and passes whatever waits

  Where slots are held until they are given back, there is besides:

  release(c)     gives back what c.c holds; returns whether it held any
  renew(c)       keeps what c.c holds, or takes what is free; returns whether it holds any now

  Where a claim of one unit has not a size of 1, or not the numbers of c:

  one(c, one)    makes `one`, a copy of c with a size of 1, a claim of one unit

  Where the number of slots in use adapts:

  drop(c, at)    what was granted at `at`, or nil, ended badly; returns whether that changes anything

  A claim c has its key, its size (0 only looks) and three numbers of its algorithm: a, b, c.
]]
local function whole(x) return format(INTEGER, x) end
local function ttl(last) return whole(max(1, ceil((last - now + KEPT) / 1000))) end

-- x / y rounded up. In doubles a quotient of great numbers may be a whole one that it is not.
local function quotient(x, y)
  local rest = math.fmod(x, y)
  return (x - rest) / y + (rest > 0 and 1 or 0)
end

-- The time of n units, n × over / under, rounded up: exact also where n × over is more than a double holds exactly.
local function time_of(n, over, under)
  if n * 1.0 * over <= MOST_EXACT then return quotient(n * over, under) end
  local rest, part = math.fmod(n, under), math.fmod(over, under)
  return (n - rest) / under * over + rest * ((over - part) / under) + quotient(rest * part, under)
end
local function no() return false end

local algorithms = {}
