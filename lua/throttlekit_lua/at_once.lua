--[[
  The fast path of decide.lua: if no job waits and no limit is paused or slowed down, this part grants a request. If the
  reply to a grant was lost, the same reply is sent again. Otherwise decide.lua decides. Runs after claims.lua.

  KEYS     of n claims: 5 each. KEYS[5n+1], only with an attempt: keeps a grant for a while, in case its reply is lost
  ARGV     now, microseconds, or "" for the server's clock; "denials caller owner free wait epoch waited early attempt"
           and the job's id or "" (both left out for a caller without a job and without a longest wait); the claims
           denials, waited: the number of the job's denials, and the time for which it has waited, as its process knows
           caller: "job"; "again", a job that ran and must wait after a 429; "nojob", a caller without a job; or "peek"
           free: the owner's other free threads; wait: the longest wait, microseconds, or empty; epoch: of new lists
           early: the job may be granted this long before its units are free; attempt: the attempt of the job, or empty

  Returns  "reason claim now_us retry_us;units full_us ...;kept;looks;waited;wakes"; claim: the binding one, from 0
           reason: 0 allowed, 1 exhausted, 2 in line, 3 queue full, 4 paused
           kept: of a denied job "claim epoch ahead"; of a granted job that waited, for each claim its position and "+" if it
           had a turn or "-" if not, or only "-" if it had no position; otherwise empty. looks: "claim delay" each
           waited: "duration denials claim", with "-" for no known claim, or empty. wakes: "claim delay" each; then ids
]]
local head = #ARGV - 3 * math.floor(#KEYS / 5)
local waited_denials, caller, owner, free, max_wait, epoch, waited_for, early, attempt = match(
  head > 1 and ARGV[head - 1] or '0 nojob  0  0 0 0 ', '^(%d+) (%l+) (%S*) (%d+) (%d*) (%x*) (%d+) (%d+) (.*)$')
local job, claims = head > 1 and ARGV[head] or '', read_claims(head + 1, owner)

local function answer(reason, binding, retry, kept, looks, waited)
  local two, uses = INTEGER .. ' ' .. INTEGER, ''
  for i, c in ipairs(claims) do uses = (i == 1 and '' or uses .. ' ') .. format(two, c.algorithm.use(c)) end
  return format(two .. ' ' .. two .. ';%s;%s;%s;%s', reason, binding - 1, now, retry, uses, kept, looks, waited)
end

-- Returns the stored reply to the same request, if the request was granted to a job that had waited. A request with more
-- or fewer claims is another one: a rule may have changed the limits in the meantime.
local mine = attempt ~= '' and owner .. ' ' .. attempt .. ' ' .. #claims .. ' '
local function answer_before()
  local known = mine and call('GET', KEYS[#KEYS])
  return known and sub(known, 1, #mine) == mine and sub(known, #mine + 1)
end

local nobody_waits = true
for _, c in ipairs(claims) do
  local was = c.record_was
  nobody_waits = nobody_waits and not (was.epoch or was.from or was.slow)
end
if nobody_waits then
  local before, at_once = answer_before(), caller ~= 'peek'
  if before then return before end
  for _, c in ipairs(claims) do
    c.algorithm.read(c)
    c.is_read = true
    at_once = at_once and c.size > 0 and not c.adopted and c.algorithm.ready(c, 0, now) <= now
  end
  if at_once then
    for _, c in ipairs(claims) do
      c.algorithm.charge(c)
      c.algorithm.keep(c)
    end
    return answer(0, 1, now, '', '', waited_denials ~= '0' and waited_for .. ' ' .. waited_denials .. ' -' or '') .. ';'
  end
end
