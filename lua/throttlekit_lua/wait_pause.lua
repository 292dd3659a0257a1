--[[
  Pause limits, or end their pause, and wake jobs. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua.

  KEYS     of each claim, of one unit: see decide.lua
  ARGV     [1] now; [2] the number of claims; [3] the duration, microseconds, or "" to end the pause; [4] "1" if the
           partner sent a 429, so that all units count as used up to the end of the pause; the claims, as in decide.lua
]]
local claims = read_claims(5, tonumber(ARGV[2]), '')
local lasts, empties = tonumber(ARGV[3]), ARGV[4] == '1'

local function change_pause(c)
  open_list(c)
  local list, was, paused, emptied = c.list, c.record_was, nil, nil
  if lasts then
    paused, emptied = max(list.paused, now + lasts), empties and max(list.emptied, now + lasts) or list.emptied
  else
    paused, emptied = math.min(list.paused, now), math.min(list.emptied, now)
  end
  if paused == list.paused and emptied == list.emptied then return end
  was[1], was[2], was[3], was[7] = whole(now), whole(paused), whole(emptied), nil
  call('HSET', c.record, 'from', was[1], 'paused', was[2], 'emptied', was[3])
end

for _, c in ipairs(claims) do
  change_pause(c)
  find(c)
  wake_claim(c)
  rewrite_if_stale(c)
  close_list(c.list)
end
return 'OK'
