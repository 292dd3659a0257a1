--[[
  Correct what was charged. Mirrors Algorithm.settled of throttlekit/_core. Comes after common.lua and the algorithms.

  KEYS[i]     what is taken of limit i: as its algorithm keeps it

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[6i-4]  limit i: code of its algorithm
  ARGV[6i-3]  limit i: a, b and c of its algorithm
  ARGV[6i]    limit i: when it was charged, microseconds
  ARGV[6i+1]  limit i: by how much the true cost is greater, in the algorithm's own measure; less if negative

  Returns  how many limits were corrected; what no longer counts is not

  Writes   KEYS[i] of each that was corrected or is stale, expiring a grace time after nothing of it counts
]]
local corrected = 0
for i = 1, #KEYS do
  local at = 6 * i - 4
  local c = {
    key = KEYS[i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3],
    granted = tonumber(ARGV[at + 4]), by = tonumber(ARGV[at + 5]), as_kept = true,
  }
  c.of.read(c)
  local settled = c.of.settle(c)
  if settled then corrected = corrected + 1 end
  if settled or c.stale then c.of.keep(c) end
end
return corrected
