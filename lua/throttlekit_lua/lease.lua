--[[
  Give slots back, or keep them. Mirrors Algorithm.released and Algorithm.renewed of throttlekit/_core/algorithms/concurrency.py.
  Comes after common.lua and the algorithm.

  KEYS[i]     the holders of limit i

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     "release" or "renew"
  ARGV[5i-2]  lease i: code of its algorithm
  ARGV[5i-1]  lease i: a, b and c of its algorithm; c is the holder
  ARGV[5i+2]  lease i: when it was granted, microseconds

  Returns  of each lease, 1 if its holder had a slot (release), or has one (renew); else 0

  Writes   KEYS[i], expiring a grace time after the last lease
]]
local reply = {}
for i = 1, #KEYS do
  local at = 5 * i - 2
  local c = {
    key = KEYS[i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3], granted = tonumber(ARGV[at + 4]),
  }
  c.of.read(c)
  local done = c.of[ARGV[2]](c)
  if done or c.stale then c.of.keep(c) end
  reply[i] = done and 1 or 0
end
return reply
