--[[
  Let no job pass for a while, or end that pause. Mirrors throttlekit/_core/acquire.py, `pause`. Comes after common.lua,
  the algorithms and line.lua.

  KEYS[3i-2]  what is taken of limit i: as its algorithm keeps it
  KEYS[3i-1]  the numbers of its waiting line, and KEYS[3i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     for how long, microseconds; "" ends the pause
  ARGV[4i-1]  limit i: code of its algorithm
  ARGV[4i]    limit i: a, b and c of its algorithm

  Returns  of each limit, until when it is paused; 0 if it never was

  Writes   KEYS[3i-1] and KEYS[3i], expiring a while after the last job is to come back, and after nothing counts of the
           units that count as used up to the end of the pause
]]
local reply = {}
for i = 1, #KEYS / 3 do
  local at = 4 * i - 1
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3], aside = {},
  }
  read_line(c)
  c.line = c.line or no_line()
  local before = c.line.paused
  local wanted = ARGV[2] == '' and math.min(before, now) or math.max(before, now + tonumber(ARGV[2]))
  if wanted ~= before then
    c.of.read(c)
    c.of.exhausted(c, wanted)
    c.line.paused, c.line.from = wanted, now
    write_line(c)
  end
  reply[i] = wanted
end
return reply
