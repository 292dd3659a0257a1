--[[
  Decide whether every claim may pass, and charge all of them or none.
  Mirrors throttlekit/_core/acquire.py and line.py. Comes after common.lua and the algorithms.

  KEYS[2i-1]  what is taken of claim i: as its algorithm keeps it
  KEYS[2i]    waiting line of claim i: "tail late guest", and " until from" if it is paused, integer microseconds

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     caller: "job", "guest" or "peek"
  ARGV[3]     claim in whose line a returning job has a place, from 1; "0" means in none, "-1" in one kept elsewhere
  ARGV[4]     when that job is due, microseconds
  ARGV[5]     how long the job will wait, microseconds; "" means as long as it takes
  ARGV[7i-1]  claim i: code of its algorithm
  ARGV[7i]    claim i: size; 0 only looks
  ARGV[7i+1]  claim i: a, b and c of its algorithm
  ARGV[7i+4]  claim i: spacing of its line, microseconds
  ARGV[7i+5]  claim i: how far ahead a newcomer's instant may be, microseconds; "" means any

  Returns  "reason claim now_us retry_us due_us", and " units full_us" of each claim: a text is read sooner than a list
           reason: 0 allowed, 1 exhausted, 2 in line, 3 early, 4 queue full, 5 paused

  Writes   KEYS[2i-1] of every claim with a size, expiring a grace time after nothing of it counts:
           when allowed, or when denied and what is stored is stale. KEYS[2i] of the binding claim when denied
           and the job will wait as long, expiring a grace time after its last instant; KEYS[2i] is deleted when
           allowed to a newcomer, if its line was given up; a grant ends a pause. A peek, and a return before the job
           is due that does not pass, write only what replaces stale state. KEYS[2i], if a clock that stepped back
           would make its pause longer.
]]
local caller, place, place_due, max_wait = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local NO_LINE = {0, 0, 0}
local claims = {}
for i = 1, #KEYS / 2 do
  local at = 7 * i - 1
  local c = {
    key = KEYS[2 * i - 1], line_key = KEYS[2 * i], of = algorithms[ARGV[at]], size = tonumber(ARGV[at + 1]),
    a = tonumber(ARGV[at + 2]), b = tonumber(ARGV[at + 3]), c = ARGV[at + 4],
    spacing = tonumber(ARGV[at + 5]), max_queue = tonumber(ARGV[at + 6]), line = NO_LINE, line_end = 0, paused = 0,
  }
  c.of.read(c)
  local tail, late, guest, paused, from
  local stored = redis.call('GET', c.line_key)
  if stored then
    tail, late, guest, paused, from = string.match(stored, LINE)
    c.paused, c.from, c.moved = pause_of(paused, from)
    if c.paused > 0 then c.of.exhausted(c, c.paused) end
  end
  c.lives = now - max(c.paused, c.stored and c.of.busy_until(c) or 0) < GRACE
  if tail and c.lives then
    c.line = {tonumber(tail), tonumber(late), tonumber(guest)}
    c.line_end = max(c.line[1], c.line[2])
  end
  claims[i] = c
end

local function answer(reason, claim, retry, due)
  for i = 1, #claims do keep_moved(claims[i]) end
  local reply, use = '%d %d %d %d %d %d %d', ' %d %d'
  if INTEGER ~= '%d' then reply, use = '%.0f %.0f %.0f %.0f %.0f %.0f %.0f', ' %.0f %.0f' end
  reply = format(reply, reason, claim, now, retry, due, claims[1].of.use(claims[1]))
  for i = 2, #claims do reply = reply .. format(use, claims[i].of.use(claims[i])) end
  return reply
end

local holder = place ~= 0 and place_due <= now
local early = place > 0 and not holder and place_due < claims[place].line_end
-- An answer that moves nothing on.
local function unmoved(reason, claim, retry, due)
  for i = 1, #claims do
    if claims[i].stale then mend(claims[i]) end
  end
  return answer(reason, claim, retry, due)
end
if early and not claims[place].of.estimates then return unmoved(3, place, place_due, place_due) end

local reason, binding, retry, due, opens = 0, 1, now, now, now
for i = 1, #claims do
  local c = claims[i]
  local ready, opens_c = now, now
  if c.size > 0 then
    ready = max(c.of.ready(c), c.paused)
    opens_c = (holder or early) and ready or max(ready, c.line_end)
  end
  if opens_c > now then
    retry = max(retry, opens_c)
    local due_c = opens_c
    if holder then due_c = max(c.line[2], opens_c)
    elseif caller == 'guest' then due_c = max(c.line[3], opens_c) end
    local full = c.max_queue and not holder and opens_c - max(now, c.paused) > c.max_queue
    if reason ~= 4 and (due_c > due or full) then
      binding, due, opens = i, due_c, opens_c
      reason = full and 4 or c.paused > now and 5 or ready > now and 1 or 2
    end
  end
end

if early and reason ~= 0 then return unmoved(3, place, place_due, place_due) end
if caller == 'peek' then return unmoved(reason, binding, retry, due) end

for i = 1, #claims do
  local c = claims[i]
  if c.size > 0 and reason == 0 then
    c.of.charge(c)
    c.of.keep(c)
    c.moved = false
    if c.paused > 0 and max(c.line_end, c.line[3]) > 0 then keep_line(c, c.line, 0, 0)
    elseif c.paused > 0 or not (holder or early or c.lives) then redis.call('DEL', c.line_key) end
  elseif c.size > 0 and c.stale then
    mend(c)
  end
end
if reason == 0 or reason == 4 or due - now > (max_wait or math.huge) then
  return answer(reason, binding, retry, due)
end

local c = claims[binding]
local after = due + (c.of.distance and c.of.distance(c) or c.spacing)
local line = c.line
if holder then line[2] = after
elseif caller == 'guest' then line[3] = math.min(after, opens + GUESTS)
else line[1] = after end
c.moved = false
local _, full = c.of.use(c)
keep_line(c, line, c.paused, c.from, full)
return answer(reason, binding, retry, due)
