--[[
  Look at one list for an owner: wake jobs, and say which of its jobs may ask. Mirrors throttlekit/_core/decide.py.
  Comes after waitlist.lua.

  KEYS     of the claim, of one unit: see ask.lua
  ARGV     [1] now; [2] the owner; [3] its free threads; [4 .. 6] the claim, as in ask.lua; then the
           ids of its first jobs

  Returns  as `close_look` in waitlist.lua says
]]
local owner, ids = ARGV[2], {unpacked(ARGV, 7)}
local c = read_claims(4, 1, owner)[1]
find(c)
local list = c.line
if list.epoch == '' then return look_reply(list, {}, ids, nil) end
if list.look <= now then list.look = 0 end
local again, found = {}, entries_of(list, ids)
for i, id in ipairs(ids) do
  local e = found[i]
  if not e or e.owner ~= owner then again[#again + 1] = id
  elseif e.state == 'k' then enter(list, e, owner) end
end
local in_us = wake_claim(c, tonumber(ARGV[3]))
return close_look(c, again, in_us)
