--[[
  Make an owner the owner of jobs that wait on one list. Mirrors throttlekit/_core/decide.py. Comes after waitlist.lua.

  KEYS     of the claim, of one unit: see ask.lua
  ARGV     [1] now; [2] the owner; [3 .. 5] the claim, as in ask.lua; then the ids

  Returns  as `close_look` in waitlist.lua says
]]
local owner, ids = ARGV[2], {unpacked(ARGV, 6)}
local c = read_claims(3, 1, owner)[1]
find(c)
local again, found = {}, entries_of(c.line, ids)
for i, id in ipairs(ids) do
  local e = found[i]
  if not e then again[#again + 1] = id
  elseif e.state == 'k' then enter(c.line, e, owner)
  elseif e.owner ~= owner then change(c.line, e, e.state, owner, e.at, e.till) end
end
return close_look(c, again, wake_claim(c))
