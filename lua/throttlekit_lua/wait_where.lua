--[[
  Find the lists on which a job waits. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua.

  KEYS     of each claim: see decide.lua
  ARGV     [1] now; [2] the job's id; the claims, as in decide.lua

  Returns  for each list that has an entry of the job, "claim state position delay waited": the claim, from 0; the
           number of jobs that wait ahead of it; the estimated time until its request passes; and the time since its
           first denial
]]
local claims, found = read_claims(3, ''), {}
for i, c in ipairs(claims) do
  local e = c.record_was.epoch and entry_in(ARGV[2], call('HGET', c.entries, ARGV[2]))
  if e then
    find(c)
    local list, before, at = c.list, 0, e.at
    if not is_woken(e) then
      before, at = rank_of(list, e.place, true), list.paused
      if c.size > 0 then at = max(at, ready_after(c, held(list).units + before * e.cost, max(now, at))) end
    end
    local delay, waited = max(0, at - now), max(0, now - e.since)
    found[#found + 1] = concat({whole(i - 1), e.state, whole(before), whole(delay), whole(waited)}, ' ')
  end
end
return found
