--[[
  Remove all entries of lists, but not their pauses and slow-downs. Mirrors throttlekit/_core/wait_control.py. Runs
  after claims.lua.

  KEYS     of each list, its record, order, entries and tags: see waitlist.lua
  ARGV     [1] now

  Returns  the number of the lists that had entries
]]
local cleared = 0
for i = 1, #KEYS, 4 do
  local record = KEYS[i]
  local was = call('HMGET', record, 'epoch', 'from', 'paused', 'emptied', 'slow')
  if was[1] then
    cleared = cleared + 1
    local left = call('PTTL', record)
    call('UNLINK', record, KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])  -- a thread of the server frees them
    local paused, slow = was[2] and was[2] ~= '0', was[5]
    if paused then call('HSET', record, 'from', was[2], 'paused', was[3] or '0', 'emptied', was[4] or '0') end
    if slow then call('HSET', record, 'slow', slow) end
    if paused or slow then call('PEXPIRE', record, whole(max(1, left))) end
  end
end
return cleared
