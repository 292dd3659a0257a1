--[[
  Decide whether every claim may pass, and charge all of them or none.
  Mirrors throttlekit/_core/acquire.py. Its first part is fast_path.lua; line.lua stands between them.

  KEYS[3i-2]  what is taken of claim i: as its algorithm keeps it
  KEYS[3i-1]  the numbers of its waiting line, and KEYS[3i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     caller: "job", "again", "guest" or "peek"
  ARGV[3]     "grace secret wait places": how long units lie for the job before it is set aside, microseconds; the
              secret of lines that begin now; how long the job will wait, microseconds, or nothing for as long as it
              takes; of a job that returns, for each claim "epoch start number due seal" or "-", divided by ";"
  ARGV[3i+1]  claim i: size; 0 only looks
  ARGV[3i+2]  claim i: the first number of its algorithm, a
  ARGV[3i+3]  claim i: "code b;c;rest": its algorithm's code and other numbers; see line.lua. The server takes more time
              for each argument than this script to divide one that the shortest way does not need

  Returns  "now_us", and " units full_us" of each claim: a text is read sooner than a list. A denial is "-reason claim
           now_us retry_us due_us" before that of the claims; if it gives places then "|", and these as in ARGV[3]
           reason: 0 allowed, 1 exhausted, 2 in line, 3 early, 4 queue full, 5 paused

  Writes   KEYS[3i-2] of every claim with a size, expiring a while after nothing of it counts: when allowed, or when
           denied and what is stored is stale, or of another rate. KEYS[3i-1] and KEYS[3i], expiring together a while
           after the last job is to come back: when denied, of each claim that denies and the job will wait as long, or
           in whose line it stood, or where others were set aside; when allowed, where jobs wait or a pause ends. A peek
           writes only in place of what is stale, or what a later clock wrote.
]]
-- Writes what is taken in place of stale state, or of another rate's, without what a pause adds to it.
local function mend(c, peeks)
  if not c.stale and (peeks or not c.adopted) then return end
  local fresh = {key = c.key, of = c.of, size = 0, a = c.a, b = c.b, c = c.spec or c.c, as_kept = peeks}
  c.of.read(fresh)
  c.of.keep(fresh)
end

local grace, secret, max_wait, given = string.match(ARGV[3], '^(%d+) (%x+) (%d*) (.*)$')
grace, max_wait = tonumber(grace), tonumber(max_wait)
local places, first = {}, caller == 'again'
for text in string.gmatch(given, '[^;]+') do places[#places + 1] = place_in(text) end
local told = now
for i, c in ipairs(claims) do
  c.place = places[i]
  read_line(c)
  local line = c.line
  if line and line.emptied > 0 then c.of.exhausted(c, line.emptied) end
  if c.size > 0 then
    if line and line.slow then read_pace(c) end
    c.ready = ready_after(c, 0, now)
    if c.ready > now or line and (line.waiting > 0 or line.paused > now) then
      if not line then c.line = no_line() end
      read_rest(c)
      c.there = pace_there(c)
      begin_line(c, secret)
      c.given = c.place
      if not is_genuine(c) then c.place = nil end
      tidy_line(c, grace, c.place and c.place.number)
      local ahead, most, least = ahead_of(c, stand(c, grace, first))
      c.ahead, c.in_front, c.least = ahead, least, least
      local longest = max(grace, c.line.grace)
      local over = c.line.over > 0 and now >= c.line.over + LOOK + longest
      local due = c.place and (not c.of.estimates and c.place.due or not over and now)
      if due and c.tags == '' and max(due, c.line.paused) <= now and c.of.tight(c, longest) then
        c.ahead = c.ready > now and max(0, c.ahead - (c.of.estimates and 0 or AT_DOOR)) or 0
        most, c.least = c.ahead, 0
      end
      local opens = max(now, c.line.paused)  -- no job passes sooner
      c.passes = c.ahead > 0 and ready_after(c, c.ahead, opens) or c.ready
      if c.passes > opens then c.passes = math.min(c.passes + c.ahead * c.of.slack(c, longest), now + FURTHEST) end
      local soon = now + longest
      if c.passes <= now and most > c.ahead and ready_after(c, most, now) > now then c.passes = soon end
      c.back_at = max(c.soon and math.min(c.passes, soon) or c.passes, c.line.paused)
      c.passes = max(c.passes, c.line.paused)
      told = max(told, c.passes)
    end
  end
end

local reason, binding, retry, due = 0, 1, now, now
for i = 1, #claims do
  local c = claims[i]
  if c.passes > now then
    retry = max(retry, c.passes)
    local spread = caller == 'guest' and c.line.guest <= c.passes + GUESTS
    local due_c = spread and max(c.line.guest, c.back_at) or c.back_at
    local full = c.queue and c.tags == 'f' and not c.held and c.line.waiting >= c.queue
    if reason ~= 4 and (due_c > due or full) then
      binding, due = i, due_c
      local early = c.place and c.place.due > now
      reason = full and 4 or early and 3 or c.line.paused > now and 5 or c.ready > now and 1 or 2
    end
  end
end
if caller == 'peek' or reason == 4 then
  for _, c in ipairs(claims) do
    mend(c, caller == 'peek')
    if c.tidied and caller ~= 'peek' then write_line(c) end
  end
  return answer(reason, binding, retry, due)
end

if reason == 0 then
  for i = 1, #claims do
    local c = claims[i]
    if c.size > 0 then
      c.of.charge(c)
      c.of.keep(c)
      local line = c.line
      local slowed = line and pass_pace(c)
      if c.ahead and c.held then  -- it takes nothing of what the others wait for
        local writes = c.tidied or c.waits or slowed or line.paused > 0
        unpause(c)
        if c.waits then leave_line(c) end
        if writes then write_line(c) end
      elseif c.ahead then
        pay(c)
        pass(c)
        write_line(c)
      elseif line and line.paused > 0 or slowed then
        unpause(c)
        if line.epoch > 0 or line.slow then write_line(c) else redis.call('DEL', c.order_key) end
      end
    end
  end
  return answer(reason, binding, retry, due)
end

local held = claims[binding].place
local no_later = max_wait == 0 and reason == 3 and held and due <= held.due
local patient, sealed = no_later or due - now <= (max_wait or math.huge), {}
for i = 1, #claims do
  local c = claims[i]
  sealed[i] = (c.place or c.given) and (c.place or c.given).text or '-'
  if c.size > 0 then
    local changed = c.tidied
    if caller == 'guest' then
      if i == binding and patient then
        c.line.guest = math.min(due + c.of.pace(c), c.passes + GUESTS)
        changed = true
      end
    elseif c.passes > now and patient then
      pay(c)
      join(c, told, grace)
      changed = true
      sealed[i] = sealed_place(c, told)
    else
      if c.waits then leave_line(c) end
      changed = changed or c.waits
      if patient and caller == 'job' and promise(c, secret, told) then
        changed, sealed[i] = true, sealed_place(c, told)
      elseif c.place and c.tags == '' and c.number == c.place.number then
        sealed[i] = sealed_place(c, told)
      end
    end
    mend(c)
    if changed then write_line(c) end
  end
end
local reply = answer(reason, binding, retry, due)
if caller == 'guest' or not patient then return reply end
return reply .. '|' .. table.concat(sealed, ';')
