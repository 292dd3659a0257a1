--[[
  Correct charges to the true cost, or release slots, and wake jobs. Mirrors throttlekit/_core/wait_control.py. Runs
  after waitlist.lua.

  KEYS     of each claim, of one unit: see decide.lua
  ARGV     [1] now; [2] "settle" or "release"; the claims, as in decide.lua; then for each claim 5 arguments: a, b and c
           of the algorithm that charged it; the time of the charge; and the true cost minus the charge, as a size of
           the algorithm
]]
local verb, claims = ARGV[2], read_claims(3, '')
for i, c in ipairs(claims) do
  local at = 3 + 3 * #claims + 5 * (i - 1)
  local charged = {
    key = c.key, algorithm = c.algorithm, size = 0, a = tonumber(ARGV[at]), b = tonumber(ARGV[at + 1]), c = ARGV[at + 2],
    granted = tonumber(ARGV[at + 3]), by = tonumber(ARGV[at + 4]), as_kept = verb == 'settle',
  }
  c.algorithm.read(charged)
  if c.algorithm[verb](charged) or charged.stale then c.algorithm.keep(charged) end
  if c.record_was.epoch then
    find(c)
    wake_and_close(c)
  end
end
return 'OK'
