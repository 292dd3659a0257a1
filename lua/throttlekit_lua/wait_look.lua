--[[
  Look at one list: wake jobs, and return the woken jobs of the owner that looks. Mirrors throttlekit/_core/decide.py.
  Runs after waitlist.lua.

  KEYS     of the claim, of one unit: see decide.lua
  ARGV     [1] now; [2] the owner; [3] its free threads; [4 .. 6] the claim, as in decide.lua; then its first jobs' ids

  Returns  "owners look epoch;delay ...;again": the number of owners; the delay until a process should look, or "-"; the
           delay of each wake of the owner; how many of the ids have no entry of this owner. Then the ids of both
]]
local owner, ids = ARGV[2], {unpacked(ARGV, 7)}
local c = read_claims(4, owner)[1]
find(c)
local list = c.list
local function look_reply(woken, again, in_us)
  local delays, reply, low = {}, {''}, #owner + 3
  for i, member in ipairs(woken) do
    local in_us = max(0, sub(member, low, low + 15) - now)
    if in_us > FUTURE then in_us = 0 end  -- a wrong clock wrote it
    delays[i], reply[i + 1] = whole(in_us), sub(member, low + 17)
  end
  for _, id in ipairs(again) do reply[#reply + 1] = id end
  local numbers = concat({whole(count(list, '[h', '(i')), in_us and whole(in_us) or '-', list.epoch}, ' ')
  reply[1] = concat({numbers, concat(delays, ' '), whole(#again)}, ';')
  return reply
end
if list.epoch == '' then return look_reply({}, ids, nil) end
if list.look <= now then list.look = 0 end
local again, texts = {}, texts_of(list, ids)
for i, id in ipairs(ids) do
  local state, its_owner = match(texts[i] or '', '^(%l) (%S*)')
  if its_owner ~= owner then again[#again + 1] = id
  elseif state == 'k' then enter(list, entry_in(id, texts[i]), owner) end
end
local in_us = wake_claim(c, tonumber(ARGV[3]))
local reply = look_reply(members(list, '-1', own('w', owner)), again, in_us)
rewrite_if_stale(c)
close_list(list)
return reply
