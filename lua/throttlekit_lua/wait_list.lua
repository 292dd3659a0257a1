--[[
  Count the jobs that wait on one list, and name the first of them. Mirrors throttlekit/_core/wait_control.py. Comes after
  claims.lua.

  KEYS     the order of the list: see waitlist.lua
  ARGV     [1] now; [2] how many jobs to name

  Returns  the number of jobs in the order, of those that were woken, and of owners with jobs in the order; then of each
           of the first jobs its owner and its id
]]
local order, most = KEYS[1], ARGV[2]

local function count(low, high) return call('ZLEXCOUNT', order, low, high) end

local function members(low, high) return call('ZRANGEBYLEX', order, low, high, 'LIMIT', '0', most) end

local reply, first = {count('[o', '(p'), count('[w', '(x'), count('[h', '(i')}, {}
for _, head in ipairs(members('[h', '(i')) do
  local owner = sub(head, 32, string.find(head, '|', 32, true) - 1)
  for _, member in ipairs(members('[o' .. owner .. '|', '(o' .. owner .. '}')) do
    local at = #owner + 3
    first[#first + 1] = {place = sub(member, at, at + 29), owner = owner, id = sub(member, at + 31)}
  end
end
table.sort(first, function(one, other)
  for i = 1, 30 do
    local a, b = string.byte(one.place, i), string.byte(other.place, i)
    if a ~= b then return a < b end
  end
  return false
end)
for i = 1, math.min(#first, tonumber(most)) do
  reply[#reply + 1], reply[#reply + 2] = first[i].owner, first[i].id
end
return reply
