-- Prototype of the waitlist's rules (not product code). One list has four keys. Everything ordered is in ONE sorted set (score 0, ZRANGEBYLEX):
--   h<place><owner>  first waiting entry of an owner     o<owner><place>|<id>  waiting     w<owner>|<id>  woken, has not asked
--   k<at 16><cost 10>|<id>  wake that counts             (product: d<deadline>|<id> max_wait, a<until>|<id> aside, u<until>|<id> turn)
-- record hash: n number, v tag, wc taken by wakes us, ts taken by turns, appt, x re-arm TTL at, p<owner> "free woken deaf head", f<tenant> fin, t<id> turn
-- entries hash: <id> -> "state owner place cost at woken"     state: o waiting, w woken, p position only, a aside.   owner: 8 characters, chosen at random
local PATIENCE, LEAD, DAY, BATCH = 250000, 30000, 86400000, 16
local fmt, max, min, sub, match, floor, call = string.format, math.max, math.min, string.sub, string.match, math.floor, redis.call
local t = call('TIME'); local now = t[1] * 1000000 + t[2]
local function n0(x) return fmt('%.0f', x) end
local function n16(x) return fmt('%016.0f', x) end
local function n10(x) return fmt('%010.0f', x) end
local function parse(o, text)
  local f, k, d, h = match(text, '^(%d+) (%d+) (%d) (%S+)$')
  o.free, o.woken, o.deaf, o.head = tonumber(f), tonumber(k), d == '1', h ~= '-' and h or nil
  return o
end
local function open(i, name, id, tenant, cost, interval, burst)
  local b = 4 * (i - 1)
  local L = {bucket = KEYS[b+1], w = KEYS[b+2], o = KEYS[b+3], e = KEYS[b+4], owners = {}, mine = {}, w_ = {}}
  local r = call('HMGET', L.w, 'n', 'v', 'wc', 'ts', 'appt', 'x', 'p' .. name, 't' .. id, 'f' .. tenant)
  L.cost, L.interval, L.burst = cost, interval, burst
  if cost then L.tat = tonumber(call('GET', L.bucket) or 0); L.units = burst - max(0, L.tat - now); L.window = max(1, floor(PATIENCE / interval)) end
  if not r[1] then L.n, L.v, L.wc, L.ts, L.appt, L.x, L.fin = 0, 0, 0, 0, 0, 0, 0; return L end
  L.exists = true
  L.n, L.v, L.wc, L.ts, L.appt, L.x = tonumber(r[1]), tonumber(r[2]), tonumber(r[3]), tonumber(r[4]), tonumber(r[5]), tonumber(r[6])
  L.turn, L.fin = r[8], tonumber(r[9] or 0)
  if r[7] then L.owners[name] = parse({name = name}, r[7]) end
  if L.wc > 0 then                                                -- wakes whose patience ended stop to count
    local old = call('ZRANGEBYLEX', L.o, '[k', '(k' .. n16(now - PATIENCE), 'LIMIT', 0, 64)
    if #old > 0 then
      for _, k in ipairs(old) do L.wc = L.wc - tonumber(sub(k, 18, 27)) end
      call('ZREM', L.o, unpack(old)); L.dirty = true
    end
  end
  return L
end
local function owner(L, name)
  local o = L.owners[name]
  if not o then
    local text = call('HGET', L.w, 'p' .. name)
    o = text and parse({name = name}, text) or {name = name, free = 999999, woken = 0}
    L.owners[name] = o
  end
  return o
end
local function skipped(L, o) return o.deaf or o.woken >= min(o.free, L.window) end
local function load_queue(L, o)                                   -- the next entries of an owner, with their costs
  local from = o.last and '(' .. o.last or '[o' .. o.name
  local q = call('ZRANGEBYLEX', L.o, from, '(o' .. o.name .. '~', 'LIMIT', 0, L.each + 1)
  o.q, o.i, o.more = q, 1, #q > L.each
  local ids = {}
  for j, m in ipairs(q) do ids[j] = match(m, '|(.*)$', 10) end
  o.ids = ids
  o.e = #ids > 0 and call('HMGET', L.e, unpack(ids)) or {}
end
local function load_heads(L)
  local hs = call('ZRANGEBYLEX', L.o, L.lasth and '(' .. L.lasth or '[h', '(i', 'LIMIT', 0, BATCH)
  local ask = {}
  for _, h in ipairs(hs) do
    local name = sub(h, -8)
    L.cand[#L.cand+1] = name
    if not L.owners[name] then ask[#ask+1] = 'p' .. name end
    L.lasth = h
  end
  if #ask > 0 then for i, text in ipairs(call('HMGET', L.w, unpack(ask))) do local n = sub(ask[i], 2); L.owners[n] = parse({name = n}, text) end end
  L.moreh = #hs == BATCH
end
local function best(L)
  while true do
    local b
    for _, name in ipairs(L.cand) do
      local o = L.owners[name]
      if o.head and not skipped(L, o) and (not b or o.head < b.head) then b = o end
    end
    if not L.moreh or b and 'h' .. b.head .. b.name <= L.lasth then return b end
    load_heads(L)
  end
end
local function has_head(L) L.cand, L.lasth, L.moreh = {}, nil, true; return best(L) ~= nil end
local function wake(L, caller, most)
  local spare = L.units - L.wc - L.ts
  if spare + LEAD < L.interval then                               -- not even a cost of 1 can be woken: the next look, and no more
    L.next = now + L.interval - spare - LEAD; return 0
  end
  L.rem, L.add, L.ent = {}, {}, {}
  L.room = min(most, floor((max(0, spare) + LEAD) / max(1, L.cost or 1)) + 1)
  local n = 0
  while true do
    L.cand, L.lasth, L.moreh = {}, nil, true
    local pick, taken = {}, 0
    while n < most do
      local o = best(L)
      if not o then break end
      if not L.each then L.each = min(BATCH, floor(L.room / max(1, #L.cand)) + 1) end
      if not o.q or o.i > #o.q then load_queue(L, o); if #o.q == 0 then o.head = nil; o.dirty = true; break end end
      local place, cost = match(o.e[o.i] or '', '^%S+ %S+ (%S+) (%d+)')
      cost = tonumber(cost)
      local left = L.units - L.wc - L.ts
      if left + LEAD < cost then L.next = now + cost - left - LEAD; break end
      local at = now + max(0, cost - left)
      pick[#pick+1] = {o = o, id = o.ids[o.i], member = o.q[o.i], place = place, cost = cost, at = at}
      if not o.oldhead then o.oldhead = o.head end
      o.last = o.q[o.i]; o.i = o.i + 1; n = n + 1
      o.woken, L.wc, o.dirty, L.dirty = o.woken + 1, L.wc + cost, true, true
      if o.i > #o.q and o.more then load_queue(L, o) end
      o.head = o.q[o.i] and match(sub(o.q[o.i], 10), '^(%d+)|') or nil
    end
    local by, again = {}, false
    for _, p in ipairs(pick) do
      local b = by[p.o.name]; if not b then b = {o = p.o}; by[p.o.name] = b end
      b[#b+1] = p.id .. ' ' .. n0(p.at - now)
    end
    for name, b in pairs(by) do
      if name == caller then for _, m in ipairs(b) do L.mine[#L.mine+1] = m end
      elseif call('PUBLISH', name, table.concat(b, ',')) == 0 then
        local o = b.o; o.deaf, o.woken, o.head, o.q, o.last, again = true, o.woken - #b, o.oldhead, nil, nil, true
        o.oldhead = nil
      end
    end
    local keep = {}
    for _, p in ipairs(pick) do
      if p.o.deaf then L.wc = L.wc - p.cost; n = n - 1
      else
        local j = #L.rem; L.rem[j+1] = p.member
        j = #L.add; L.add[j+1], L.add[j+2], L.add[j+3], L.add[j+4] = 0, 'w' .. p.o.name .. '|' .. p.id, 0, 'k' .. n16(p.at) .. n10(p.cost) .. '|' .. p.id
        j = #L.ent; L.ent[j+1], L.ent[j+2] = p.id, 'w ' .. p.o.name .. ' ' .. p.place .. ' ' .. n0(p.cost) .. ' ' .. n0(p.at) .. ' ' .. n0(now)
      end
    end
    if not again then break end
  end
  for _, o in pairs(L.owners) do
    if o.oldhead then
      L.rem[#L.rem+1] = 'h' .. o.oldhead .. o.name
      if o.head then local j = #L.add; L.add[j+1], L.add[j+2] = 0, 'h' .. o.head .. o.name end
    end
  end
  if #L.add > 0 then call('ZADD', L.o, unpack(L.add)) end          -- first: a set that becomes empty loses its TTL
  if #L.rem > 0 then call('ZREM', L.o, unpack(L.rem)) end
  if #L.ent > 0 then call('HSET', L.e, unpack(L.ent)) end
  return n
end
local function remove(L, id, e)                                   -- an entry leaves the order or the wakes
  local state, name, place, cost, at = match(e, '^(%S+) (%S+) (%S+) (%d+) ?(%d*)')
  local o = owner(L, name)
  if state == 'o' then
    local m = 'o' .. name .. place .. '|' .. id
    if o.head == place then
      call('ZREM', L.o, m, 'h' .. place .. name)
      local first = call('ZRANGEBYLEX', L.o, '[o' .. name, '(o' .. name .. '~', 'LIMIT', 0, 1)[1]
      o.head = first and match(sub(first, 10), '^(%d+)|') or nil
      if o.head then call('ZADD', L.o, 0, 'h' .. o.head .. name) end
      o.dirty = true
    else call('ZREM', L.o, m) end
  elseif state == 'w' then
    if call('ZREM', L.o, 'w' .. name .. '|' .. id, 'k' .. n16(tonumber(at)) .. n10(tonumber(cost)) .. '|' .. id) == 2 then L.wc = L.wc - tonumber(cost) end
    o.woken, o.dirty = max(0, o.woken - 1), true
  end
  L.dirty = true
  return place
end
local function enter(L, id, o, place, cost)
  call('HSET', L.e, id, 'o ' .. o.name .. ' ' .. place .. ' ' .. n0(cost))
  if not o.head then L.x = 0 end                                   -- the set may be new: its TTL too
  if not o.head or place < o.head then
    if o.head then call('ZREM', L.o, 'h' .. o.head .. o.name) end
    call('ZADD', L.o, 0, 'o' .. o.name .. place .. '|' .. id, 0, 'h' .. place .. o.name)
    o.head, o.dirty = place, true
  else call('ZADD', L.o, 0, 'o' .. o.name .. place .. '|' .. id) end
end
local function close(L)
  local w = L.w_
  for name, o in pairs(L.owners) do
    if o.dirty then
      w[#w+1] = 'p' .. name
      w[#w+1] = min(o.free, 999999) .. ' ' .. o.woken .. ' ' .. (o.deaf and '1 ' or '0 ') .. (o.head or '-')
    end
  end
  if L.dirty then
    local j = #w
    w[j+1], w[j+2], w[j+3], w[j+4], w[j+5], w[j+6], w[j+7], w[j+8] = 'n', n0(L.n), 'v', n0(L.v), 'wc', n0(L.wc), 'ts', n0(L.ts)
  end
  if L.next and (L.appt < now - 20000 or L.appt > L.next) then
    L.next = max(L.next, now + 10000); w[#w+1] = 'appt'; w[#w+1] = n0(L.next)
  else L.next = nil end
  if now > L.x then                                               -- TTLs are renewed at most once an hour
    local j = #w; w[j+1], w[j+2] = 'x', n0(now + 3600000000)
    if not L.exists then w[j+3], w[j+4] = 'appt', n0(L.next or 0) end
    call('HSET', L.w, unpack(w))
    for _, k in ipairs({L.w, L.o, L.e}) do call('PEXPIRE', k, 2 * DAY) end
  elseif #w > 0 then call('HSET', L.w, unpack(w)) end
end
