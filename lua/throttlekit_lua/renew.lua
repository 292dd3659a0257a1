--[[
  Extend leases of slots. Mirrors Algorithm.renew of throttlekit/_core/algorithms/concurrency.py. Runs after common.lua
  and the algorithm.

  KEYS[i]     lease i: the state of its limit

  ARGV[1]     now, microseconds; "" for the server's clock (tests pass a number)
  ARGV[4i-2]  lease i: code of its algorithm
  ARGV[4i-1 .. 4i+1]  lease i: a, b and c of its algorithm; c is the holder

  Returns  for each lease, 1 if its holder has a slot now; otherwise 0

  Writes   KEYS[i], which expires shortly after its last lease ends
]]
local reply = {}
for i = 1, #KEYS do
  local at = 4 * i - 2
  local c = {
    key = KEYS[i], algorithm = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3],
  }
  c.algorithm.read(c)
  local has = c.algorithm.renew(c)
  if has or c.stale then c.algorithm.keep(c) end
  reply[i] = has and 1 or 0
end
return reply
