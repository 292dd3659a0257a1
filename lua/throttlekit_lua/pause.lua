--[[
  Let no job pass for a while, or end that pause. Mirrors throttlekit/_core/acquire.py, `pause`. Comes after common.lua and the
  algorithms.

  KEYS[2i-1]  what is taken of limit i: as its algorithm keeps it
  KEYS[2i]    its waiting line: see acquire.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     for how long, microseconds; "" ends the pause
  ARGV[4i-1]  limit i: code of its algorithm
  ARGV[4i]    limit i: a, b and c of its algorithm

  Returns  of each limit, until when it is paused; 0 if it never was

  Writes   KEYS[2i], expiring a grace time after its last instant, and after nothing counts of the units that count as
           used up to the end of the pause
]]
local reply = {}
for i = 1, #KEYS / 2 do
  local at = 4 * i - 1
  local c = {
    key = KEYS[2 * i - 1], line_key = KEYS[2 * i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3],
  }
  local tail, late, guest, paused, from = string.match(redis.call('GET', c.line_key) or '', LINE)
  local line = {tonumber(tail or nil) or 0, tonumber(late or nil) or 0, tonumber(guest or nil) or 0}
  local before, _, moved = pause_of(paused, from)
  local wanted = ARGV[2] == '' and math.min(before, now) or math.max(before, now + tonumber(ARGV[2]))
  if wanted ~= before or moved then
    c.of.read(c)
    c.of.exhausted(c, wanted)
    local _, full = c.of.use(c)
    keep_line(c, line, wanted, now, full)
  end
  reply[i] = wanted
end
return reply
