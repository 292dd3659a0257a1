--[[
  Return the units of a request that this store granted and another store denied. The job keeps its position and its
  turn, and other jobs are woken. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua.

  KEYS     of each claim: see decide.lua
  ARGV     [1] now; [2] caller, [3] the job's id, "" if it keeps no position, [4] its owner; [5] the epoch of new lists;
           [6] the time for which the job has waited; [7] the number of its denials; the claims, as in decide.lua; then
           for each claim 4 arguments: the time of the charge, or "-" if there was none; `full_us` after the charge; the
           job's position, or "-"; and the time for which its turn counts, or "-"
]]
local job, owner, epoch = ARGV[3], ARGV[4], ARGV[5]
local since, denials = max(0, now - tonumber(ARGV[6])), tonumber(ARGV[7])
local claims = read_claims(8, '')

local function return_units(c, granted, full)
  local by = c.size
  -- A bucket that was full has gained units since the charge: return fewer.
  if c.code == 't' then by = by - math.min(by, max(0, now - (full - by))) end
  local charged = {
    key = c.key, algorithm = c.algorithm, size = 0, a = c.a, b = c.b, c = c.c, granted = granted, by = 0 - by, as_kept = true,
  }
  c.algorithm.read(charged)
  local settled = by > 0 and c.algorithm.settle(charged)
  if settled or charged.stale then c.algorithm.keep(charged) end
end

local function keep_position(c, place, turn)
  local list = c.list
  if entry_of(list, job) then return end
  if list.epoch == '' then list.epoch = epoch end
  local step = 0
  if place == '-' or c.held then place, step = new_place(list, c, ARGV[2] == 'again')
  else list.n, list.v = max(list.n, tonumber(sub(place, 19))), max(list.v, tonumber(sub(place, 3, 18))) end
  local e = {id = job, place = place, cost = c.held and 0 or c.cost, owner = owner, at = 0, step = step, tenant = c.tenant}
  e.since, e.denials, e.workflow = since, denials, workflow_of(c)
  keep(list, e, owner, now + KEPT_WAIT, turn and now + turn or 0)
end

for i, c in ipairs(claims) do
  local at = 8 + 3 * #claims + 4 * (i - 1)
  if c.size > 0 then
    local granted = tonumber(ARGV[at])
    if granted then return_units(c, granted, tonumber(ARGV[at + 1])) end
    find(c)
    if job ~= '' then keep_position(c, ARGV[at + 2], tonumber(ARGV[at + 3])) end
    wake_and_close(c)
  end
end
return 'OK'
