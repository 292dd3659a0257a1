--[[
  Read every claim, and decide at once if each has a size, room, and no line: then nothing of what follows is needed.
  The first part of acquire.lua, whose header says what is read, written and returned. Comes after the algorithms.
]]
local caller, claims, at_once = ARGV[2], {}, ARGV[2] ~= 'peek'
for i = 1, #KEYS / 3 do
  local at = 6 * i + 1
  local c = {
    key = KEYS[3 * i - 2], order_key = KEYS[3 * i - 1], jobs_key = KEYS[3 * i], of = algorithms[ARGV[at]],
    size = tonumber(ARGV[at + 1]), a = tonumber(ARGV[at + 2]), b = tonumber(ARGV[at + 3]), c = ARGV[at + 4],
    rest = ARGV[at + 5], passes = now,
  }
  c.of.read(c)
  c.line_text = redis.call('GET', c.order_key)
  at_once = at_once and c.size > 0 and not c.line_text and c.of.ready(c, 0, now) <= now
  claims[i] = c
end

local function answer(reason, claim, retry, due)
  local reply, use = '%d %d %d %d %d %d %d', ' %d %d'
  if INTEGER ~= '%d' then reply, use = '%.0f %.0f %.0f %.0f %.0f %.0f %.0f', ' %.0f %.0f' end
  reply = format(reply, reason, claim, now, retry, due, claims[1].of.use(claims[1]))
  for i = 2, #claims do reply = reply .. format(use, claims[i].of.use(claims[i])) end
  return reply
end

if at_once then
  for _, c in ipairs(claims) do
    c.of.charge(c)
    c.of.keep(c)
  end
  return answer(0, 1, now, now)
end
