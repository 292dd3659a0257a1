--[[
  Slow limits down for a while, after the partner refused a job or reported its remaining units, and wake jobs. Mirrors
  throttlekit/_core/wait_control.py, and `apply_refusal` and `apply_remaining` of throttlekit/_core/slowdown.py, which
  explains the formula. Runs after waitlist.lua.

  KEYS     of each claim, of one unit: see decide.lua
  ARGV     [1] now; the claims, as in decide.lua; then for each claim 4 arguments: "fall", the time at which the refused
           job was admitted or "", the span in microseconds, and the floor in millionths; or "remaining", the units that
           remain, the time until the reset in microseconds, and ""; or, for slots that adapt, "drop", the time at which
           the failed job was admitted or "", "" and ""
]]
local function not_slow()
  local slow = {top = ONE, span = 1, floor = ONE}
  for _, field in ipairs(SLOWED) do slow[field] = slow[field] or 0 end
  return slow
end

local function slow_tat(slow) return slow_last(slow) > now and slow.tat or 0 end

-- Applies a refusal or a report. Returns whether the slow-down changed.
local function apply_refusal(line, granted, span, floor)
  local slow = line.slow or not_slow()
  if granted and slow.back > now and granted < slow.fell then return false end
  local part = max(slow_part(slow), floor)
  local below = slow.back > now and part < slow.top
  local from = max(line.paused, now)
  local tat = max(slow_tat(slow), from + TOLERANCE)
  slow.top = max(floor, math.floor(part * (below and TOP_BELOW or TOP) / TOP_PARTS))
  local spans = 1
  while cubic(slow.top, spans * span, span) < ONE do spans = spans + 1 end
  slow.fell, slow.span, slow.floor, slow.back, slow.tat = now, span, floor, from + spans * span, tat
  slow.from, slow.moved = from, now
  line.slow = slow
  return true
end

local function apply_remaining(line, remaining, reset, ours)
  local slow, until_ = line.slow, now + reset
  local known = slow and slow.reported_until > now
  if reset <= 0 or remaining >= ours then return false end
  local each = ceil(reset * 1000 / max(1, remaining))
  if known and until_ <= slow.reported_until + SAME then
    if each <= slow.each then return false end
    if until_ >= slow.reported_until - SAME then until_ = max(until_, slow.reported_until) end
  end
  slow = slow or not_slow()
  local tat, first = slow_tat(slow), now + max(TOLERANCE, ceil(each / 1000))
  if not known or remaining == 0 then tat = max(tat, first)
  elseif until_ > slow.reported_until + SAME then tat = math.min(tat, first) end
  slow.reported_at, slow.reported_until, slow.each, slow.moved, slow.tat = now, until_, each, now, tat
  line.slow = slow
  return true
end

local claims = read_claims(2, '')
for i, c in ipairs(claims) do
  local at = 2 + 3 * #claims + 4 * (i - 1)
  local x, y, z = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  find(c)
  local why, changed = ARGV[at], false
  if why == 'fall' then changed = apply_refusal(c.list, x, y, z)
  elseif why == 'remaining' then changed = apply_remaining(c.list, x, y, c.algorithm.there(c) + ceil(y * 1000 / max(1, c.mark)))
  elseif c.algorithm.drop(c, x) then c.algorithm.keep(c) end
  if changed then c.list.renewed = 0 end
  wake_and_close(c)
end
return 'OK'
