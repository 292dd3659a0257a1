--[[
  The waitlist of one claim's limit and key. Mirrors throttlekit/_core/waitlist.py. Runs after claims.lua, the
  algorithms and slowdown.lua.

  The list of a claim c, c.list, has four keys:

  record   hash: epoch; n (the last number); v; look; renewed (the time at which its expiry was last set); retry
           (`next_retry_us` of waitlist.py); paused, from, emptied (the pause); slow (see slowdown.lua); p<owner>: the
           free threads of an owner with waiting entries, or minus the time at which it last listened if none is free
  order    sorted set; all scores are 0, so members are sorted by their bytes. A place is 2 digits of rank, 16 of the
           tag, and 12 of the number. A waiting entry has a member o, a woken entry a member w. Others, if they apply:
             o<owner>|<place>|<id>       it waits
             w<owner>|<at>|<id>          it was woken
             k<until><kind><cost>|<id>   units are kept for it until that time. Kind w: it was woken; l: it was woken,
                                         and its framework returns it after a delay; t: it has a turn
             x<until>|<id>               it is removed at that time
             g<workflow>|<place>|<id>    it waits, and belongs to a workflow
             h<place><owner>|<id>        it is the first waiting entry of its owner
  entries  hash: id -> "state owner place cost at until step since denials workflow tenant". state: o waiting, w woken,
           p woken on trial (no units are kept for it), k kept. at: the time for which it was woken, or the end of its
           turn. until: the time at which it is removed, or "-". step: the amount that it added to its tenant's finish.
           since: the time of the job's first denial. denials: the number of its denials
  tags     sorted set: the start tag of each tenant's next job, if greater than v

  The owner "~1000" is not a process. It has all jobs that a framework returns after a delay, at most 1000 ms late.

  The names of an owner and a workflow have no "|" and no space; an id and a tenant may have any bytes. The server
  deletes an empty set with its expiry, so members are added before others are removed.
]]
local LEAD, PATIENCE, TURN, FUTURE, TRIAL = 30000, 250000, 1000000, 1000000, 1000000
local SPACING, VOID, WOKEN, KEPT_WAIT = 10000, 20000, 3600000000, 172800000000
local MOST, FREE_UNKNOWN, DEAF = 16, 999999, -1
local RENEWED, TO_LIVE = 3600000000, '172800000'

local function wide(x) return format(WIDE, x) end

-- Returns how late the jobs of an owner may return; 0 if the owner is a process, which listens for wakes.
local function lateness(name) return sub(name, 1, 1) == '~' and 1000 * (tonumber(sub(name, 2)) or 0) or 0 end

-- Lists

local function open_list(c)
  local was = c.record_was
  -- This constructor has all fields, because a table that grows field by field is copied several times.
  local list = {
    record = c.record, order = c.order, entries = c.entries, tags = c.tags, owned = {}, was = was,
    epoch = was.epoch or '', slow = was.slow and slow_in(was.slow) or nil, from = (was.from or 0) + 0,
    paused = (was.paused or 0) + 0, emptied = (was.emptied or 0) + 0, n = (was.n or 0) + 0, v = (was.v or 1) + 0,
    look = (was.look or 0) + 0, renewed = (was.renewed or 0) + 0, retry = (was.retry or 0) + 0,
    held = nil, dropped = false, window = 1, head = nil, skipped = nil, skips_late = false,
  }
  if c.requester ~= '' then list.owned[c.requester] = {name = c.requester, free = tonumber(was.free), was = was.free} end
  c.list = list
  -- If a clock that was ahead wrote the pause or slow-down, the rest of it begins now.
  if list.slow and slow_at(list.slow) then
    was.slow = slow_text(list.slow)
    call('HSET', c.record, 'slow', was.slow)
  end
  local by = list.from - now
  if by <= 0 then return end
  list.paused, list.from, list.emptied = list.paused - by, now, max(0, list.emptied - by)
  was.from, was.paused, was.emptied = whole(now), whole(list.paused), whole(list.emptied)
  call('HSET', c.record, 'from', was.from, 'paused', was.paused, 'emptied', was.emptied)
end

-- Writes the changes. If the list has no entries, deletes all of it except its pause and its slow-down.
local function close_list(list)
  if list.dropped then
    local left = call('HLEN', list.entries)
    if left == 0 then
      call('DEL', list.record, list.order, list.entries, list.tags)
      list.was, list.owned, list.epoch, list.n, list.v, list.look, list.renewed = {}, {}, '', 0, 1, 0, 0
    elseif left == 1 then list.renewed = 0 end  -- its keys may be new, without an expiry
  end
  local was, idle, renews = list.was, list.epoch == '', false
  local plain = idle and list.from == 0 and not list.slow
  if plain and list.retry == 0 then
    if was.from or was.retry or was.slow then call('DEL', list.record) end
    return
  end
  if math.abs(now - list.renewed) >= RENEWED and not idle then renews, list.renewed = true, now end
  local row = {}
  for _, name in ipairs(FIELDS) do
    if list[name] ~= (was[name] or 0) + 0 then row[#row + 1], row[#row + 2] = name, whole(list[name]) end
  end
  if list.epoch ~= (was.epoch or '') then row[#row + 1], row[#row + 2] = 'epoch', list.epoch end
  local slow = list.slow and slow_text(list.slow) or nil
  if slow and slow ~= was.slow then row[#row + 1], row[#row + 2] = 'slow', slow
  elseif was.slow and not slow then call('HDEL', list.record, 'slow') end
  for name, o in pairs(list.owned) do
    local free = o.free and whole(o.free) or nil
    if free and free ~= o.was then row[#row + 1], row[#row + 2] = 'p' .. name, free
    elseif o.was and not free then call('HDEL', list.record, 'p' .. name) end
  end
  if #row > 0 then call('HSET', list.record, unpacked(row)) end
  if not idle and not renews then return end
  -- A pause or a slow-down may last longer than TO_LIVE.
  local last = max(list.paused, list.exhausted or 0, list.slow and slow_last(list.slow) or 0)
  call('PEXPIRE', list.record, plain and ttl(list.retry) or whole(max(tonumber(TO_LIVE), (ttl(last)) + 0)))
  if renews then
    for _, key in ipairs({list.order, list.entries, list.tags}) do call('PEXPIRE', key, TO_LIVE) end
  end
end

-- Owners

local function owner_of(list, name)
  local o = list.owned[name]
  if not o then
    local was = call('HGET', list.record, 'p' .. name)
    o = {name = name, free = tonumber(was or nil), was = was}
    list.owned[name] = o
  end
  return o
end

-- `own` returns the range of an owner's members of one kind. `count` and `members` read a range.
local function own(kind, name) return '[' .. kind .. name .. '|', '(' .. kind .. name .. '}' end
local function count(list, low, high) return call('ZLEXCOUNT', list.order, low, high) end
local function members(list, most, low, high) return call('ZRANGEBYLEX', list.order, low, high, 'LIMIT', '0', most) end

-- Returns whether an owner is skipped: each of its free threads has a wake, or its first wake is overdue or was written
-- by a wrong clock. Sets the number of its wakes and the time of the first one.
local function is_skipped(list, o)
  if lateness(o.name) > 0 then return list.skips_late end
  if o.free <= 0 then return true end
  if not o.woken then
    local low, high = own('w', o.name)
    local found = members(list, whole(MOST), low, high)
    o.first_wake = found[1] and tonumber(sub(found[1], #low, #low + 15))
    o.woken = #found < MOST and #found or count(list, low, high)
  end
  return o.woken > 0 and (o.woken >= o.free or o.first_wake + PATIENCE <= now or o.first_wake > now + FUTURE)
end

-- Returns the owners with waiting entries before `till`, sorted by their first entries. Sets o.first and its o.place.
local function owners(list, most, till)
  local found, unread = members(list, most, '[h', till), {}
  for i, member in ipairs(found) do
    local bar = string.find(member, '|', 32, true)
    local name, id = sub(member, 32, bar - 1), sub(member, bar + 1)
    local o = list.owned[name] or {name = name}
    if not list.owned[name] then unread[#unread + 1] = 'p' .. name end
    list.owned[name], found[i], o.first, o.place = o, o, id, sub(member, 2, 31)
  end
  if #unread > 0 then
    for i, free in ipairs(call('HMGET', list.record, unpacked(unread))) do
      local o = list.owned[sub(unread[i], 2)]
      o.free, o.was = tonumber(free), free
    end
  end
  return found
end

-- Returns the owner of the first waiting entry whose owner is not skipped, or nil. Sets list.skipped to the owners
-- before it. list.head caches the owner until an entry, or the number of an owner's free threads, changes. Reads all
-- owners only if each of the first four is skipped.
local function head(list)
  if list.head then return list.head end
  for most = 4, -1, -5 do
    list.skipped = {}
    local found = owners(list, whole(most), '(i')
    for _, o in ipairs(found) do
      if not is_skipped(list, o) then list.head = o end
      if list.head then return o end
      list.skipped[#list.skipped + 1] = o
    end
    if #found < most then return nil end
  end
end

-- Entries

local function entry_in(id, text)
  if not text then return false end
  local state, owner, place, cost, at, till, step, since, denials, workflow, tenant =
    match(text, '^(%l) (%S*) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%S*) (.*)$')
  return {
    id = id, state = state, owner = owner, place = place, cost = cost + 0, at = at + 0, till = tonumber(till),
    step = step + 0, since = since + 0, denials = denials + 0, workflow = workflow, tenant = tenant,
  }
end

-- Returns the texts of the entries of some ids; false for an id without an entry.
local function texts_of(list, ids) return #ids > 0 and call('HMGET', list.entries, unpacked(ids)) or {} end

local function entry_of(list, id)
  return list.epoch ~= '' and entry_in(id, call('HGET', list.entries, id)) or nil
end

local function is_woken(e) return e.state == 'w' or e.state == 'p' end

-- Returns the members of an entry in the order, except `h`.
local function members_of(e)
  if not e.state then return {} end
  local rest, found = '|' .. e.id, {}
  if is_woken(e) then
    found[1] = 'w' .. e.owner .. '|' .. wide(e.at) .. rest
    local late = lateness(e.owner)
    local kind, lasts = late > 0 and 'l' or 'w', late > 0 and math.min(late, FUTURE) or PATIENCE
    if e.state == 'w' then found[2] = 'k' .. wide(e.at + lasts) .. kind .. whole(e.cost) .. rest end
  elseif e.state == 'o' then
    found[1] = 'o' .. e.owner .. '|' .. e.place .. rest
    if e.workflow ~= '' then found[2] = 'g' .. e.workflow .. '|' .. e.place .. rest end
  elseif e.at > 0 then found[1] = 'k' .. wide(e.at) .. 't' .. whole(e.cost) .. rest end
  if e.till then found[#found + 1] = 'x' .. wide(e.till) .. rest end
  return found
end

local function add(members, member) members[#members + 1], members[#members + 2] = '0', member end

-- Updates an owner's member `h` when one of its entries begins to wait, or stops.
local function file(list, e, enters, added, removed)
  local o, prefix = owner_of(list, e.owner), #e.owner + 3
  local found = members(list, '2', own('o', e.owner))
  for i, each in ipairs(found) do found[i] = 'h' .. sub(each, prefix, prefix + 29) .. e.owner .. sub(each, prefix + 30) end
  local mine, first = 'h' .. e.place .. e.owner .. '|' .. e.id, found[1]
  if enters then
    o.free = o.free or FREE_UNKNOWN
    if first and first < mine then return end
    add(added, mine)
    removed[#removed + 1] = first
  elseif first == mine then
    removed[#removed + 1] = mine
    if found[2] then add(added, found[2]) else o.free = nil end
  end
end

-- Writes an entry with a new state, or removes it if state is nil.
local function change(list, e, state, owner, at, till)
  local before, added, removed, kept = members_of(e), {}, {}, {}
  local moves = e.state ~= state or e.owner ~= owner
  if e.state == 'o' and moves then file(list, e, false, added, removed) end
  -- A new entry after list.head does not change list.head.
  if e.state or state ~= 'o' or list.head and e.place < list.head.place then list.head = nil end
  if e.at > 0 then list.held, owner_of(list, e.owner).woken = nil, nil end
  e.state, e.owner, e.at, e.till, e.cost = state, owner, at, till, e.asks or e.cost
  if state == 'o' and moves then file(list, e, true, added, removed) end
  if state and at > 0 then list.held, owner_of(list, owner).woken = nil, nil end
  for _, member in ipairs(members_of(e)) do
    add(added, member)
    kept[member] = true
  end
  for _, member in ipairs(before) do
    if not kept[member] then removed[#removed + 1] = member end
  end
  if #added > 0 then call('ZADD', list.order, unpacked(added)) end
  if #removed > 0 then call('ZREM', list.order, unpacked(removed)) end
  if state then
    local text = {state, owner, e.place, whole(e.cost), whole(at), till and whole(till) or '-', whole(e.step)}
    text[8], text[9], text[10], text[11] = whole(e.since), whole(e.denials), e.workflow, e.tenant
    call('HSET', list.entries, e.id, concat(text, ' '))
  else
    call('HDEL', list.entries, e.id)
    list.dropped = true
  end
end

local function enter(list, e, owner, till) change(list, e, 'o', owner, 0, till) end
local function keep(list, e, owner, till, turn) change(list, e, 'k', owner, turn or 0, till) end

-- Removes an entry whose job was not admitted, and subtracts its step from its tenant's finish.
local function forget(list, e)
  change(list, e, nil)
  local finish = e.step > 0 and call('ZSCORE', list.tags, e.tenant)
  if not finish then return end
  finish = finish - e.step
  if finish > list.v then call('ZADD', list.tags, whole(finish), e.tenant)
  else call('ZREM', list.tags, e.tenant) end
end

-- Positions

-- Returns the position of a new job, and the amount that it adds to its tenant's finish. A job whose workflow holds the
-- slot is ahead of all others.
local function new_place(list, c, first)
  list.n = list.n + 1
  local tag, step = 1, 0
  if first or c.held then tag = c.step > 0 and max(0, list.v - 1) or 0
  elseif c.step > 0 then
    tag = max(list.v, tonumber(call('ZSCORE', list.tags, c.tenant) or '0'))
    step = math.min(c.step, MOST_TAG - tag)
    local added = call('ZADD', list.tags, whole(tag + step), c.tenant)
    if added == 1 then call('PEXPIRE', list.tags, TO_LIVE) end
  end
  return format('%02.0f%016.0f%012.0f', c.held and 0 or c.rank, tag, list.n), step
end

-- Removes an entry whose job was admitted.
local function pass(list, e)
  change(list, e, nil)
  local tag = tonumber(sub(e.place, 3, 18))
  if tag <= list.v then return end
  list.v = tag
  call('ZREMRANGEBYSCORE', list.tags, '-inf', whole(tag))
end

-- Returns the number of entries that wait before a place, without those of skipped owners, or with `all` of them.
local function rank_of(list, place, all)
  local before = 0
  for _, o in ipairs(owners(list, '-1', '(h' .. place)) do
    local low = 'o' .. o.name .. '|'
    if all or not is_skipped(list, o) then before = before + count(list, '[' .. low, '(' .. low .. place) end
  end
  return before
end

-- Wakes

-- Returns the units that are kept for woken jobs and turns. late: the units for jobs that return after a delay; first:
-- the time at which the first units are no longer kept; last: the time of the last wake.
local function held(list)
  if not list.held then
    local units, late, last = 0, 0, nil
    local low, high = '[k' .. wide(now + 1), '(k' .. wide(now + FUTURE + PATIENCE + 1)
    local found = list.epoch == '' and {} or members(list, '-1', low, high)
    for _, member in ipairs(found) do
      local cost, kind = tonumber(match(member, '^%d+', 19)), sub(member, 18, 18)
      units = units + cost
      if kind == 'w' then last = member elseif kind == 'l' then late = late + cost end
    end
    list.held = {units = units, late = late, last = last and tonumber(sub(last, 2, 17)) - PATIENCE}
    list.held.first = found[1] and tonumber(sub(found[1], 2, 17))
  end
  return list.held
end

-- Returns the number of woken jobs that are not overdue, for an owner whose jobs return after a delay.
local function count_expected(list, name)
  return count(list, '[w' .. name .. '|' .. wide(now - lateness(name)), '(w' .. name .. '|' .. wide(now + FUTURE + 1))
end

-- Returns the number of woken jobs that are overdue, for an owner whose jobs return after a delay.
local function count_overdue(list, name)
  if lateness(name) == 0 then return 0 end
  return count(list, '[w' .. name .. '|', '(w' .. name .. '|' .. wide(now - lateness(name)))
end

-- Returns the time of an owner's last wake, or nil.
local function last_wake(list, name)
  local low, high = own('w', name)
  local last = call('ZREVRANGEBYLEX', list.order, high, low, 'LIMIT', '0', '1')[1]
  return last and tonumber(sub(last, #low, #low + 15))
end

-- Returns when to wake the first job of an owner whose jobs return late, if no unit can be kept for it: after the last
-- wake, at the pace of the limit; or when a unit is free, if more woken jobs are overdue than not.
local function wake_late_at(list, name, pace, ready)
  if count_overdue(list, name) > count_expected(list, name) then return ready end
  local last = last_wake(list, name)
  if not last or last > now + FUTURE then return ready end
  local at = last + pace
  return at < now - TRIAL and at or max(at, ready)
end

-- Publishes a wake to an owner, in the format that `bell_of` in stores/wire.py reads; without texts, only checks.
-- Returns whether the owner listens. In a cluster, an owner listens on each node to which it sends requests.
local function rings(c, name, ...)
  if name == c.requester then return true end
  local bell = {}
  for i, text in ipairs({c.key, ...}) do bell[i] = whole(#text) .. ':' .. text .. ',' end
  return call('PUBLISH', 'tk1:' .. name, concat(bell)) > 0
end

-- Wakes an entry for `at`, if its owner listens. Returns whether the owner listens.
local function wake_entry(c, e, at, state)
  local list, late = c.list, lateness(e.owner)
  if late == 0 and not rings(c, e.owner, e.id, whole(at - now)) then
    owner_of(list, e.owner).free, list.head = DEAF, nil
    return false
  end
  if late == 0 and e.owner == c.requester then c.own[#c.own + 1] = {id = e.id, at = at} end
  change(list, e, state, e.owner, at, at + WOKEN)
  return true
end

-- Returns a copy of a claim, with one unit and without a holder.
local function of_one(c)
  if c.cost == 1 and c.code ~= 'a' and not c.held and not c.list.slow then return c end
  local one = setmetatable({held = false, size = 1, rest = whole(c.mark) .. ' 1 ', pace = false}, {__index = c})
  if c.algorithm.one then c.algorithm.one(c, one) end
  if c.list.slow then read_pace(one) end
  return one
end

-- Returns whether a number of units may be kept for jobs that return late. If not, too many units would be lost.
local function may_keep(c, one, units)
  if c.algorithm.estimates then return units <= c.list.window end
  return c.code ~= 't' or one.a >= math.floor(2 * units * c.mark / 1000)
end

-- Checks whether skipped owners still listen: a process may be dead, or may have lost all its wakes.
local function check_skipped(c, skipped)
  for _, each in ipairs(skipped) do
    local e = each.free == DEAF and entry_of(c.list, each.first)
    if lateness(each.name) > 0 or e and e.till then  -- no process listens, or the entry will end
    elseif e then enter(c.list, e, each.name, now + KEPT_WAIT)
    elseif each.free < DEAF then
      if TRIAL - each.free < now then each.free, c.list.head = rings(c, each.name) and -now or DEAF, nil end
    elseif each.free > 0 and each.first_wake + TRIAL < now and last_wake(c.list, each.name) + TRIAL < now then
      wake_entry(c, entry_of(c.list, each.first), now, 'p')
    end
  end
end

-- Removes ended entries, and wakes the first ones, as long as there are units for them. Returns when a process should
-- look next, or nil. If the requesting job waits on this list, and no unit is free soon, only computes that time.
local function wake(c, waits)
  local list = c.list
  local ended = members(list, whole(MOST), '[x', '(x' .. wide(now + 1))
  for _, member in ipairs(ended) do
    local e = entry_of(list, sub(member, 19))
    local o, low, high = owner_of(list, e.owner), own('o', e.owner)
    forget(list, e)
    local next_one = o.free == DEAF and entry_of(list, sub(members(list, '1', low, high)[1], #low + 31))
    if next_one then enter(list, next_one, o.name, next_one.till or max(now, next_one.since + KEPT_WAIT)) end
  end
  local again = #ended == MOST and now + SPACING or nil
  if now < list.paused then return again or list.paused end
  local one, lead = of_one(c), not c.algorithm.estimates and LEAD
  local look_at = waits and lead and ready_after(one, 0, now) - lead or now
  if look_at > now then return again or look_at end
  local o, next_at, tried, taken, kept = head(list), nil, 0, held(list).units, held(list).late
  while o and tried < MOST do
    local late = lateness(o.name) > 0
    if not late and o.woken >= list.window then
      next_at = o.first_wake + PATIENCE
      break
    end
    local e = entry_of(list, o.first)
    local keeps = not late or may_keep(c, one, kept + e.cost)
    local ready = ready_after(one, (keeps and taken or 0) + e.cost - 1, now)
    local at = keeps and ready or wake_late_at(list, o.name, math.floor(e.cost * c.mark / 1000), ready)
    if max(at, ready) > now + (lead or 0) then
      if keeps then
        next_at = lead and at - lead or nil
        break
      end
      list.skips_late, list.head = true, nil
    else
      tried = tried + 1
      if wake_entry(c, e, at, keeps and 'w' or 'p') and keeps then
        taken, kept = taken + e.cost, kept + (late and e.cost or 0)
      end
    end
    o = head(list)
  end
  if list.skips_late then list.skips_late, list.head = false, nil end
  local skipped, out = list.skipped, held(list)
  if next_at and out.last then next_at = max(next_at, out.last + SPACING) end
  check_skipped(c, skipped)
  if not o and #skipped == 0 then return again end
  if tried == MOST then again = now + SPACING end
  local at = math.min(next_at or math.huge, again or math.huge, out.first or math.huge)
  return at < math.huge and at or nil
end

-- Claims

-- Reads the state of a claim: the units in use, and the waitlist.
local function find(c)
  local mark, cost, step, lead, queue, tenant = match(c.rest, '^(%d+) (%d+) (%d+) (%d+) (%d*) (.*)$')
  c.mark, c.cost, c.step, c.queue, c.tenant = tonumber(mark), tonumber(cost), tonumber(step), tonumber(queue), tenant
  c.rank = 15 - math.floor(tonumber(lead) / 1099511627776)
  open_list(c)
  local list, estimates = c.list, c.algorithm.estimates
  list.window = max(1, math.floor(estimates and c.declared_a / 4 or PATIENCE * 1000 / max(1, c.mark)))
  if not c.is_read then c.algorithm.read(c) end
  if c.adopted then list.retry = 0 end  -- retry times were spread at another rate
  if list.emptied > 0 then
    c.algorithm.exhaust(c, list.emptied)
    list.exhausted = select(2, c.algorithm.use(c))
  end
  if list.slow and c.size > 0 then read_pace(c) end
end

-- Writes the state again if it is stale or was written at another rate. The new state does not contain a pause.
local function rewrite_if_stale(c, peeks)
  if not c.stale and (peeks or not c.adopted) then return end
  local fresh = {key = c.key, algorithm = c.algorithm, size = 0, a = c.declared_a, b = c.b, c = c.spec or c.c, as_kept = peeks}
  c.algorithm.read(fresh)
  c.algorithm.keep(fresh)
end

-- Returns the workflow that holds, or will hold, a slot of the claim, or "".
local function workflow_of(c) return c.algorithm.estimates and sub(c.c, -1) == '#' and c.c or '' end

-- Wakes entries of a workflow that holds its slot, because they need no other slot.
local function wake_workflow(c)
  local low, high = own('g', workflow_of(c))
  local found = low == '[g|' and {} or members(c.list, whole(MOST), low, high)
  for _, each in ipairs(found) do wake_entry(c, entry_of(c.list, sub(each, #low + 31)), now, 'p') end
end

-- Wakes entries of a claim's list, and records the requester's free threads. Returns the delay until its look, or nil.
local function wake_claim(c, free, by_job, granted)
  local list, requester = c.list, lateness(c.requester) > 0 and '' or c.requester
  if list.epoch == '' or c.size == 0 then return nil end
  local o = free and requester ~= '' and owner_of(list, requester)
  if o and o.free and o.free ~= free then o.free, list.head = free > 0 and free or -now, nil end
  if granted then wake_workflow(c) end
  local at = wake(c, c.entry and c.entry.state == 'o')
  if requester == '' or not at then return nil end
  at = max(at, now + SPACING)
  if now - VOID <= list.look and list.look <= at and not (by_job and at > now + LEAD + PATIENCE) then return nil end
  list.look = at
  return at - now
end

-- Ends a change of a claim's list: wakes entries for which there are units, and writes the list.
local function wake_and_close(c)
  wake_claim(c)
  rewrite_if_stale(c)
  close_list(c.list)
end
