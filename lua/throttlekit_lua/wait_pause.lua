--[[
  Pause limits, or end their pause, and wake jobs. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua.

  KEYS     of each claim, of one unit: see decide.lua
  ARGV     [1] now; [2] the duration, microseconds, or "" to end the pause; [3] "1" if the partner sent a 429, so that
           all units count as used up to the end of the pause; the claims, as in decide.lua
]]
local lasts, empties = tonumber(ARGV[2]), ARGV[3] == '1'

local function change_pause(c)
  open_list(c)
  local list, was, paused, emptied = c.list, c.record_was, nil, nil
  if lasts then
    paused, emptied = max(list.paused, now + lasts), empties and max(list.emptied, now + lasts) or list.emptied
  else
    paused, emptied = math.min(list.paused, now), math.min(list.emptied, now)
  end
  if paused == list.paused and emptied == list.emptied then return end
  was.from, was.paused, was.emptied, was.renewed = whole(now), whole(paused), whole(emptied), nil
  call('HSET', c.record, 'from', was.from, 'paused', was.paused, 'emptied', was.emptied)
end

for _, c in ipairs(read_claims(4, '')) do
  change_pause(c)
  find(c)
  wake_and_close(c)
end
return 'OK'
