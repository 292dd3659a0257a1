--[[
  The part of decide.lua that runs before the others: repeat a grant whose answer was lost, or grant at once if nobody
  waits and nothing is paused or slowed down. Runs after claims.lua.

  KEYS[5n+1]  besides those of n claims: where a grant is kept for a while, in case its answer is lost; only with an attempt

  ARGV     now, microseconds, if not by the server's clock; but for a caller without a job who waits for any time, "denials
           caller owner free wait epoch waited early attempt", and the job's id or ""; the claims: see claims.lua
           denials, waited: how often the job was denied, and for how long it has waited, as far as its process knows
           caller: "job", "again", "guest" or "peek"; free: threads besides the one of this request; wait: how long the job will
           wait, microseconds, or nothing; epoch: of lists that begin now; early: how long before its units come it may
           be granted; attempt: which attempt of the job this is, or nothing

  Returns  "reason claim now_us retry_us;units full_us ...;kept;looks;waited;wakes": claim, of claims from 0; kept: "claim
           epoch" or nothing, but of a job that waited and is granted, for each claim "-", or the position that it
           had and "+" if it had a turn, else "-"; looks: "claim delay" each; waited: "for denials claim", with "-" for a
           claim that is unknown, or nothing; wakes: "claim delay" each, whose ids follow as texts of their own
           reason: 0 allowed, 1 exhausted, 2 in line, 3 queue full, 4 paused
]]
local head = #ARGV - 3 * math.floor(#KEYS / 5)
local waited_denials, caller, owner, free, max_wait, epoch, waited_for, early, attempt = match(
  head > 1 and ARGV[head - 1] or '0 guest  0  0 0 0 ', '^(%d+) (%l+) (%S*) (%d+) (%d*) (%x*) (%d+) (%d+) (.*)$')
local job, claims = head > 1 and ARGV[head] or '', read_claims(head + 1, math.floor(#KEYS / 5), owner)

local function answer(reason, binding, retry, kept, looks, waited)
  local two, uses = INTEGER .. ' ' .. INTEGER, ''
  for i, c in ipairs(claims) do uses = (i == 1 and '' or uses .. ' ') .. format(two, c.of.use(c)) end
  return format(two .. ' ' .. two .. ';%s;%s;%s;%s', reason, binding - 1, now, retry, uses, kept, looks, waited)
end

-- The answer to the same request, if it was a grant to a job that had waited.
local function answer_before()
  if attempt == '' then return nil end
  local mine, known = owner .. ' ' .. attempt .. ' ', call('GET', KEYS[#KEYS])
  return known and sub(known, 1, #mine) == mine and sub(known, #mine + 1)
end

local nobody_waits = true
for _, c in ipairs(claims) do
  local was = c.record_was
  nobody_waits = nobody_waits and not (was.epoch or was[1] or was.slow)
end
if nobody_waits then
  local before, at_once = answer_before(), caller ~= 'peek'
  if before then return before end
  for _, c in ipairs(claims) do
    c.of.read(c)
    c.is_read = true
    at_once = at_once and c.size > 0 and not c.adopted and c.of.ready(c, 0, now) <= now
  end
  if at_once then
    for _, c in ipairs(claims) do
      c.of.charge(c)
      c.of.keep(c)
    end
    return answer(0, 1, now, '', '', waited_denials ~= '0' and waited_for .. ' ' .. waited_denials .. ' -' or '') .. ';'
  end
end
