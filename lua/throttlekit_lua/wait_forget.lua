--[[
  Remove jobs that wait no longer, and wake others; without ids for units that came back, or as a rate rose. Mirrors
  throttlekit/_core/decide.py. Comes after waitlist.lua.

  KEYS     of each claim: see ask.lua
  ARGV     [1] now; [2] the number of claims; the claims, as in ask.lua; then the ids
]]
local claims = read_claims(3, tonumber(ARGV[2]), '')
local ids = {unpacked(ARGV, 3 + 3 * #claims)}
for _, c in ipairs(claims) do
  if c.record_was.epoch then
    find(c)
    for _, e in ipairs(entries_of(c.line, ids)) do
      if e then forget(c.line, e) end
    end
    wake_claim(c)
    mend(c)
    close_list(c.line)
  end
end
return 'OK'
