--[[
  Decide whether every claim may pass, and charge all of them or none. A denied job waits on a list until it is woken.
  Mirrors throttlekit/_core/decide.py. Runs after waitlist.lua.

  The fast paths one_record.lua and at_once.lua run first. The header of at_once.lua documents KEYS, ARGV and the reply.
]]
local SOONEST = 1000
free, max_wait, early = tonumber(free), tonumber(max_wait), tonumber(early)
-- waited_for: the time for which the job has waited; waited_at: the claim on whose list it waits.
local waited_for, waited_denials, waited_at = waited_for + 0, waited_denials + 0, nil

local late = lateness(owner)

-- Returns when c passes if n other units pass before it; for a rate, not before a pause ends.
local function ready(c, n) return ready_after(c, n, max(now, c.list.paused)) end

-- Returns whether a waiting job is ahead of a new job. If MOST woken jobs of the first owner are overdue, the queue was
-- probably purged, so the new job does not wait.
local function comes_first(list)
  local o = head(list)
  return o and count_overdue(list, o.name) < MOST
end

local function look_once(c)
  local list = c.list
  c.turn, c.till, c.first = c.entry ~= nil and c.entry.at > 0, now, true
  c.passes = c.size == 0 and now or max(now, list.paused)
  if c.size == 0 or c.held then return end
  local kept = c.turn and 0 or held(list).units
  if late > 0 and c.entry and not c.turn then
    local before = rank_of(list, c.entry.place) * c.cost
    if ready(c, kept + before) <= now + late then c.turn, kept = true, kept - held(list).late end
  end
  c.passes = max(ready(c, kept), list.paused)
  if c.turn and c.code == 't' and list.paused <= now then c.till = now + early end
  c.first = c.turn or c.passes > now or list.epoch == '' or not comes_first(list)
end

local function look(c)
  find(c)
  look_once(c)
  -- If the first job of the list is returned by its framework after a delay, any request wakes it.
  local o = caller ~= 'peek' and not c.first and head(c.list)
  if o and lateness(o.name) > 0 then
    wake(c)
    c.entry = c.entry and entry_of(c.list, job) or nil
    look_once(c)
  end
end

-- Returns whether the queue is full. Waiting jobs count, and woken jobs that return after a delay. Jobs of owners that
-- do not listen do not count.
local function is_full(c)
  local list, low = c.list, '[w~0'
  if not c.queue or c.size == 0 or c.held then return false end
  local jobs, first = count(list, '[o', '(p'), members(list, '1', low, '(w~:')[1]
  while first do
    local name = match(first, '^w([^|]*)')
    jobs, low = jobs + count_expected(list, name), '[w' .. name .. '}'
    first = members(list, '1', low, '(w~:')[1]
  end
  if jobs < c.queue then return false end
  for _, o in ipairs(owners(c.list, '-1', '(i')) do
    if o.free == DEAF then jobs = jobs - count(c.list, own('o', o.name)) end
  end
  return jobs >= c.queue
end

-- Returns the reason, the number of the binding claim, the estimated time at which the request passes, and the number
-- of jobs on the binding claim's list that this estimate assumes to pass before.
local function verdict()
  local binding, retry, waits = nil, now, false
  for i, c in ipairs(claims) do
    retry, waits = max(retry, c.passes), waits or c.entry ~= nil
    if c.passes > c.till or not c.first then
      local than, paused = claims[binding], c.list.paused > now
      local was_paused = than and than.list.paused > now
      if not than or paused and not was_paused or paused == was_paused and c.passes > than.passes then binding = i end
    end
  end
  if not binding then return 0, 1, retry, 0 end
  local c, jobs = claims[binding], 0
  local list = c.list
  retry = c.passes
  if not c.turn then
    jobs = c.entry and rank_of(list, c.entry.place) or count(list, '[o', '(p')
    retry = max(retry, ready(c, held(list).units + jobs * c.cost))
  end
  if not waits and waited_denials == 0 and caller ~= 'again' then
    for i, each in ipairs(claims) do
      if is_full(each) then return 3, i, retry, jobs end
    end
  end
  if list.paused > now then return 4, binding, retry, jobs end
  return ready(c, 0) > now and 1 or 2, binding, retry, jobs
end

local function grant(c, begins)
  local list = c.list
  c.begins = begins
  if c.size == 0 then
    rewrite_if_stale(c)
    return
  end
  c.algorithm.charge(c)
  c.algorithm.keep(c)
  list.paused, list.from, list.emptied, list.head = 0, 0, 0, nil
  charge_pace(c)
  c.pace = nil
  if c.entry then pass(list, c.entry) end
end

-- Returns the job's entry, or a new one. If the job's workflow holds the slot, the entry costs no unit and is first.
local function position(c)
  local list, e = c.list, c.entry
  if list.epoch == '' then list.epoch = epoch end
  if e and not c.held == (e.cost == 0) then
    forget(list, e)
    e = nil
  end
  if not e then
    local place, step = new_place(list, c, caller == 'again')
    e = {id = job, place = place, cost = 0, owner = owner, at = 0, step = step, tenant = c.tenant, workflow = workflow_of(c)}
    c.entry = e
  end
  if not c.held then e.asks = c.cost end  -- the cost may have changed since the last request
  e.since, e.denials = max(0, now - waited_for), waited_denials
  return e
end

-- Returns whether a text is before another by its bytes: "<" would use the server's locale.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- Returns whether limit c is scarcer than another: it has fewer units per second.
local function is_scarcer(c, than)
  if c.mark ~= than.mark then return c.mark > than.mark end
  return is_before(c.key, than.key)
end

-- Returns the retry time of a job that its framework returns after a delay. Sets c.ahead, the number of jobs before it.
local function comes(c)
  local list = c.list
  if not c.entry then return now end
  c.ahead = rank_of(list, c.entry.place) + count_expected(list, owner)
  local at = ready(c, held(list).units - held(list).late + c.ahead * c.cost)
  if c.code == 't' and c.a < late then at = at - early end  -- a unit that is not taken at once is lost
  return max(now + SOONEST, at, list.paused)
end

-- Takes the job out of the order, but keeps its position, if its framework may return it after its longest wait.
local function keep_if_over(c, retry)
  local e = c.entry
  if max_wait and retry - now + late > max_wait and e and e.till then keep(c.list, e, owner, e.till) end
end

-- Returns the retry time of a caller without a position: later than that of each such caller denied before it.
local function spread(c, retry)
  local list, last = c.list, retry + RETRY_SPREAD
  if list.retry <= last then retry = max(retry, list.retry) end
  if not max_wait or retry - now <= max_wait then list.retry = math.min(retry + c.algorithm.pace(c), last) end
  return retry
end

-- Gives the job a position on each list. It waits on the list of the binding claim.
local function deny(binding)
  local bound = claims[binding]
  for i, c in ipairs(claims) do
    rewrite_if_stale(c)
    if i ~= binding and c.size > 0 then
      local turn = 0
      if c.entry and c.entry.at > 0 and ready(c, 0) <= c.till then
        turn = bound.list.paused <= now and is_scarcer(c, bound) and now + TURN or now
      end
      keep(c.list, position(c), owner, now + KEPT_WAIT, turn)
    end
  end
  enter(bound.list, position(bound), owner, max_wait and now + max_wait + late)
end

-- Returns the positions of a granted job, or "" if it has none. If another store then denies the job, wait_return.lua
-- restores them.
local function positions()
  local texts = {}
  for i, c in ipairs(claims) do texts[i] = c.entry and c.entry.place .. (c.entry.at > 0 and '+' or '-') or '-' end
  return match(concat(texts, ' '), '^.*%d.*$') or ''
end

local waited, paused = false, false
for i, c in ipairs(claims) do
  local was = c.record_was
  -- If a clock that was ahead wrote the pause, the pause begins now.
  paused = paused or (was.paused or 0) - max(0, (was.from or 0) - now) > now
  local e = job ~= '' and c.record_was.epoch and entry_in(job, call('HGET', c.entries, job)) or nil
  c.entry, waited = e, waited or e ~= nil
  if e then
    waited_for, waited_denials = max(waited_for, now - e.since), max(waited_denials, e.denials)
    if e.state ~= 'k' then waited_at = waited_at or i end
  end
end
local before = not waited and not paused and not nobody_waits and answer_before()
if before then return before end
for _, c in ipairs(claims) do look(c) end
local reason, binding, retry, ahead = verdict()
if caller == 'peek' then
  for _, c in ipairs(claims) do rewrite_if_stale(c, true) end
  return answer(reason, binding, retry, '', '', '') .. ';'
end
local kept = ''
if reason == 0 then
  kept = positions()
  for _, c in ipairs(claims) do grant(c, retry) end
elseif reason ~= 3 and job ~= '' then
  waited_denials, waited_at = waited_denials + 1, binding
  deny(binding)
  if late > 0 then
    retry = now
    for _, c in ipairs(claims) do retry = max(retry, comes(c)) end
    ahead = claims[binding].ahead
    keep_if_over(claims[binding], retry)
  end
  kept = concat({whole(binding - 1), claims[binding].list.epoch, whole(ahead)}, ' ')
else
  for _, c in ipairs(claims) do rewrite_if_stale(c) end
  if reason ~= 3 then retry = spread(claims[binding], retry) end
end
local looks, delays, replies = {}, {}, {}
for i, c in ipairs(claims) do
  local delay = wake_claim(c, reason == 0 and free or free + 1, job ~= '', reason == 0)
  if delay then looks[#looks + 1] = whole(i - 1) .. ' ' .. whole(delay) end
  for _, each in ipairs(c.own) do
    delays[#delays + 1], replies[#delays + 2] = whole(i - 1) .. ' ' .. whole(each.at - now), each.id
  end
  close_list(c.list)
end
local claim = waited_at and whole(waited_at - 1) or '-'
local waited_text = waited_denials > 0 and concat({whole(waited_for), whole(waited_denials), claim}, ' ') or ''
if reason == 0 and waited and mine then
  call('SET', KEYS[#KEYS], mine .. answer(reason, binding, retry, kept, '', waited_text) .. ';', 'PX', ttl(now))
end
replies[1] = answer(reason, binding, retry, kept, concat(looks, ' '), waited_text) .. ';' .. concat(delays, ' ')
return #delays > 0 and replies or replies[1]
