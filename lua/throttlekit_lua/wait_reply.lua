--[[
  What wait_look.lua and wait_own.lua have in common. Comes after waitlist.lua.
]]

-- The ids of an owner's entries that were woken, and when.
local function woken_of(list, name)
  local low, high = own('w', name)
  local woken = members(list, '-1', low, high)
  for i, member in ipairs(woken) do
    woken[i] = {at = tonumber(sub(member, #low, #low + 15)), id = sub(member, #low + 17)}
  end
  return woken
end

-- The reply to a look: "owners look epoch;delay ...;again": in how long somebody should look, or "-"; the delay of each
-- wake of the owner; how many of the ids the list does not know for it. Then all these ids.
local function look_reply(list, woken, again, in_us)
  local reply, delays = {''}, {}
  for i, each in ipairs(woken) do delays[i], reply[#reply + 1] = whole(max(0, each.at - now)), each.id end
  for _, id in ipairs(again) do reply[#reply + 1] = id end
  local numbers = concat({whole(count(list, '[h', '(i')), in_us and whole(in_us) or '-', list.epoch}, ' ')
  reply[1] = concat({numbers, concat(delays, ' '), whole(#again)}, ';')
  return reply
end

-- Writes the list, and returns the reply to a look.
local function close_look(c, again, in_us)
  local reply = look_reply(c.line, woken_of(c.line, c.asker), again, in_us)
  mend(c)
  close_list(c.line)
  return reply
end
