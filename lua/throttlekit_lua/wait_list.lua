--[[
  Count the jobs that wait on one list, and return the first of them. Mirrors throttlekit/_core/wait_control.py. Runs
  after claims.lua.

  KEYS     the order of the list: see waitlist.lua
  ARGV     [1] now; [2] the number of jobs to return

  Returns  the number of waiting jobs, of woken jobs, and of owners with waiting jobs; then for each of the first jobs
           its owner and its id
]]
local order, most = KEYS[1], tonumber(ARGV[2])

local function count(low, high) return call('ZLEXCOUNT', order, low, high) end

local function members(low, high, most) return call('ZRANGEBYLEX', order, low, high, 'LIMIT', '0', whole(most)) end

local reply, first = {count('[o', '(p'), count('[w', '(x'), count('[h', '(i')}, {}
for i, head in ipairs(members('[h', '(i', most)) do
  local owner = sub(head, 32, string.find(head, '|', 32, true) - 1)
  -- At least i - 1 jobs of other owners are ahead of this owner's first one.
  for _, member in ipairs(members('[o' .. owner .. '|', '(o' .. owner .. '}', most - i + 1)) do
    local at = #owner + 3
    first[#first + 1] = {place = sub(member, at, at + 29), owner = owner, id = sub(member, at + 31)}
  end
end
table.sort(first, function(one, other) return one.place < other.place end)
for i = 1, math.min(#first, most) do
  reply[#reply + 1], reply[#reply + 2] = first[i].owner, first[i].id
end
return reply
