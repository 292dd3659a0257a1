--[[
  Read every claim, and decide at once where no line has jobs, a pause or a slowdown in it: grant, if each claim has a
  size and room; deny a guest. Then nothing of what follows is needed. The first part of acquire.lua, whose header says
  what is read, written and returned. Comes after the algorithms.
]]
local NO_QUEUE = '^%d+ %d+ %d+ %d+ 0 '

local caller, claims, at_once, spread = ARGV[2], {}, ARGV[2] ~= 'peek', ARGV[2] == 'guest'
for i = 1, #KEYS / 3 do
  local at = 3 * i + 1
  local code, b, own, rest = string.match(ARGV[at + 2], '^(%l) (%d+);([^;]*);(.*)$')
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[code],
    size = tonumber(ARGV[at]), a = tonumber(ARGV[at + 1]), b = tonumber(b), c = own, rest = rest,
  }
  c.of.read(c)
  c.line_text = redis.call('GET', c.order_key)
  local quiet = not c.line_text
  if c.line_text then
    local head, v, since, guest, tail, last
    if string.find(c.line_text, NO_JOBS, -24) then
      head, v, since, guest, tail, last = string.match(c.line_text, QUIET)
    end
    quiet = head and v + 0 < LAST_TAG and since - LOOK <= now
    if quiet then c.until_guest, c.from_guest, c.guest, c.furthest = head, tail, guest + 0, last + 0 end
  end
  c.passes = quiet and c.size > 0 and c.of.ready(c, 0, now) or now
  at_once = at_once and quiet and c.size > 0 and c.passes <= now
  spread = spread and quiet and not (c.stale or c.adopted)
    and (c.passes <= now or c.guest and not string.find(c.rest, NO_QUEUE))
  claims[i] = c
end

local function answer(reason, claim, retry, due)
  local reply, use = whole(now), ' ' .. INTEGER .. ' ' .. INTEGER
  if reason > 0 then reply = format('-' .. INTEGER .. use .. use, reason, claim, now, retry, due) end
  for _, c in ipairs(claims) do reply = reply .. format(use, c.of.use(c)) end
  return reply
end

if at_once then
  for _, c in ipairs(claims) do
    c.of.charge(c)
    c.of.keep(c)
  end
  return answer(0)
end

-- A guest is told an instant of its own, and takes no place: no more is read, and one number of one line is written.
local wait = spread and string.match(ARGV[3], '^%d+ %x+ (%d*) $')
if wait then
  local binding, retry, due = 1, now, now
  for i, c in ipairs(claims) do
    if c.passes > now then
      retry = max(retry, c.passes)
      local due_c = c.guest - GUESTS <= c.passes and max(c.guest, c.passes) or c.passes
      if due_c > due then binding, due = i, due_c end
    end
  end
  local c = claims[binding]
  if c.passes > now then
    if due - now <= (tonumber(wait) or math.huge) then
      local guest = math.min(due + c.of.pace(c), c.passes + GUESTS)
      redis.call('SET', c.order_key, c.until_guest .. whole(guest) .. c.from_guest, 'PX', ttl(max(c.furthest, guest)))
    end
    return answer(1, binding, retry, due)
  end
end
