--[[
  Take jobs out of the lines in which they stand. Mirrors throttlekit/_core/acquire.py, `leave`. Comes after common.lua,
  the algorithms and line.lua.

  KEYS[3i-2]  what is taken of line i's limit: as its algorithm keeps it
  KEYS[3i-1]  the numbers of line i, and KEYS[3i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[6i-4]  line i: code of its limit's algorithm
  ARGV[6i-3]  line i: a, b and c of its algorithm
  ARGV[6i]    line i: the rest of its claim: see line.lua
  ARGV[6i+1]  line i: the place to leave, "epoch start number due seal"

  Returns  how many places were left

  Writes   KEYS[3i-1] and KEYS[3i], as acquire.lua does, where the place was in the line
]]
local gone = 0
for i = 1, #KEYS / 3 do
  local at = 6 * i - 4
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[ARGV[at]], size = 0,
    a = tonumber(ARGV[at + 1]), b = tonumber(ARGV[at + 2]), c = ARGV[at + 3], rest = ARGV[at + 4],
    place = place_in(ARGV[at + 5]), aside = 0,
  }
  read_line(c)
  if c.line then
    read_rest(c)
    if not is_genuine(c) then c.place = nil end
    local rank = stand(c, 0, false)
    if c.waits then
      local _
      c.of.read(c)
      if c.line.emptied > 0 then c.of.exhausted(c, c.line.emptied) end
      _, _, c.in_front = ahead_of(c, rank)
      leave_line(c)
      write_line(c)
      gone = gone + 1
    end
  end
end
return gone
