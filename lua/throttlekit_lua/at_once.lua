--[[
  The first part of ask.lua: repeat a grant whose answer was lost, or grant at once where nobody waits and nothing is
  paused or slowed down. Then nothing of what follows is needed. Comes after claims.lua.

  KEYS[5n+1]  besides those of n claims: where a grant is kept for a while, in case its answer is lost; only with an attempt

  ARGV[1]  now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]  caller: "job", "again", "guest" or "peek"
  ARGV[3]  the job's id; ARGV[4] its owner; each may be ""
  ARGV[5]  "free wait epoch waited denials early attempt": free threads besides the one that asks; how long the job will wait,
           microseconds, or nothing; the epoch of lists that begin now; for how long the job has waited, and how often it
           was denied, as far as its process knows; how long before its units come it may be granted; which attempt
           of the job this is, or nothing
  ARGV[6 ..]  the claims: see claims.lua

  Returns  "reason claim now_us retry_us;units full_us ...;kept;looks;waited;wakes": claim, of claims from 0; kept: "claim
           epoch" or nothing, but of a job that waited and is granted, for each claim "-", or the position that it
           had and "+" if it had a turn, else "-"; looks: "claim delay" each; waited: "for denials claim", with "-" for a
           claim that is unknown, or nothing; wakes: "claim delay" each, whose ids follow as texts of their own
           reason: 0 allowed, 1 exhausted, 2 in line, 3 queue full, 4 paused
]]
local job, owner, claims = ARGV[3], ARGV[4], read_claims(6, math.floor(#KEYS / 5), ARGV[4])
local free, max_wait, epoch, waited_for, waited_denials, early, attempt =
  match(ARGV[5], '^(%d+) (%d*) (%x*) (%d+) (%d+) (%d+) (.*)$')

local function answer(reason, binding, retry, kept, looks, waited)
  local two, uses = INTEGER .. ' ' .. INTEGER, ''
  for i, c in ipairs(claims) do uses = (i == 1 and '' or uses .. ' ') .. format(two, c.of.use(c)) end
  return format(two .. ' ' .. two .. ';%s;%s;%s;%s', reason, binding - 1, now, retry, uses, kept, looks, waited)
end

-- The answer to the same question, if it was a grant to a job that waited.
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
  local before, at_once = answer_before(), ARGV[2] ~= 'peek'
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
    local waited = waited_denials ~= '0' and waited_for .. ' ' .. waited_denials .. ' -' or ''
    return answer(0, 1, now, '', '', waited) .. ';'
  end
  local peeks, binding, passes = ARGV[2] == 'peek', 1, now
  if peeks or ARGV[2] == 'guest' and job == '' and waited_denials == '0' then
    for i, c in ipairs(claims) do
      local at = c.size == 0 and now or c.of.ready(c, 0, now)
      if c.stale or c.adopted or string.find(c.rest, '^%d+ %d+ %d+ %d+ 0 ') then at = math.huge end
      if at > passes then binding, passes = i, at end
    end
    local c, wait = claims[binding], tonumber(max_wait)
    if passes < math.huge and peeks then
      return answer(passes > now and 1 or 0, binding, passes, '', '', '') .. ';'
    elseif passes < math.huge and passes > now then
      -- A caller that keeps no position is told an instant of its own: one number of one list is written.
      local after = (c.record_was[8] or 0) + 0
      local retry = after - GUESTS <= passes and max(after, passes) or passes
      if not wait or retry - now <= wait then
        local last = math.min(retry + c.of.pace(c), passes + GUESTS)
        call('HSET', c.record, 'guest', whole(last))
        call('PEXPIRE', c.record, ttl(last))
      end
      return answer(1, binding, retry, '', '', '') .. ';'
    end
  end
end
