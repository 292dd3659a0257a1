--[[
  Let no job pass for a while, or end that pause. Mirrors throttlekit/_core/acquire.py, `pause`. Comes after common.lua,
  the algorithms and line.lua.

  KEYS[3i-2]  what is taken of limit i: as its algorithm keeps it
  KEYS[3i-1]  the numbers of its waiting line, and KEYS[3i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     for how long, microseconds; "" ends the pause
  ARGV[3]     "1": the limit counts as used up to then, because the service downstream answered 429; "" leaves it
  ARGV[4i]    limit i: code of its algorithm
  ARGV[4i+1]  limit i: a, b and c of its algorithm

  Returns  of each limit, until when it is paused; 0 if it never was

  Writes   KEYS[3i-1] and KEYS[3i], expiring a while after the last job is to come back, and after nothing counts of the
           units that count as used up to the end of the pause
]]
local reply = {}
for i = 1, #KEYS / 3 do
  local at = 4 * i
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3], aside = 0,
  }
  read_line(c)
  c.line = c.line or no_line()
  local line, paused, emptied = c.line, c.line.paused, c.line.emptied
  if ARGV[2] == '' then paused, emptied = math.min(paused, now), math.min(emptied, now)
  else
    local ends = now + tonumber(ARGV[2])
    paused, emptied = max(paused, ends), ARGV[3] == '1' and max(emptied, ends) or emptied
  end
  if paused ~= line.paused or emptied ~= line.emptied then
    line.paused, line.from, line.emptied = paused, now, emptied
    c.of.read(c)
    if emptied > 0 then c.of.exhausted(c, emptied) end
    write_line(c)
  end
  reply[i] = paused
end
return reply
