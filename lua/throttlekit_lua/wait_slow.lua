--[[
  Slow limits down for a while, and wake jobs. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua and
  slow_events.lua.

  KEYS     of each claim, of one unit: see decide.lua
  ARGV     [1] now; [2] the number of claims; the claims, as in decide.lua; then for each claim 4 arguments:
           "fall", the time at which the refused job was admitted or "", the span in microseconds, and the floor in
           millionths; or "remaining", the units that remain, the time until the reset in microseconds, and ""; or, for
           slots that adapt, "drop", the time at which the failed job was admitted or "", "" and ""
]]
local number = tonumber(ARGV[2])
local claims = read_claims(3, number, '')
for i, c in ipairs(claims) do
  local at = 3 + 3 * number + 4 * (i - 1)
  local x, y, z = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  find(c)
  local why, changed = ARGV[at], false
  if why == 'fall' then changed = apply_refusal(c.list, x, y, z)
  elseif why == 'remaining' then changed = apply_remaining(c.list, x, y, c.algorithm.there(c) + math.floor(y / (max(1, c.mark) / 1000)))
  elseif c.algorithm.drop(c, x) then c.algorithm.keep(c) end
  if changed then c.list.renewed = 0 end
  wake_claim(c)
  rewrite_if_stale(c)
  close_list(c.list)
end
return 'OK'
