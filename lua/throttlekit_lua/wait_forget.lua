--[[
  Remove jobs that no longer wait, or keep only their positions, and wake other jobs. Without ids, only wake jobs after
  a change of the limit, such as the end of a pause. Mirrors throttlekit/_core/wait_control.py. Runs after waitlist.lua.

  KEYS     of each claim: see decide.lua
  ARGV     [1] now; [2] the owner of the entries, or "" for any owner; [3] "1" to keep their positions; the claims, as
           in decide.lua; then the ids
]]
local claims, owner, keeps = read_claims(4, ''), ARGV[2], ARGV[3] == '1'
local ids = {unpacked(ARGV, 4 + 3 * #claims)}
for _, c in ipairs(claims) do
  if c.record_was.epoch then
    find(c)
    for i, text in ipairs(texts_of(c.list, ids)) do
      local e = entry_in(ids[i], text)
      if e and (owner == '' or e.owner == owner) then
        if keeps then keep(c.list, e, e.owner, now + KEPT_WAIT) else forget(c.list, e) end
      end
    end
    wake_and_close(c)
  end
end
return 'OK'
