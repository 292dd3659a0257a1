--[[
  The shortest way: every claim is a token bucket, kept at its own rate, in whose line no job waits. Grants, if each has
  room; denies a guest of one bucket. Comes after clock.lua and before all that costs more to set up than this decision.
  It answers and writes what acquire.lua would. In any other case it writes nothing, and the text behind it decides.

  KEYS and ARGV  those of acquire.lua
]]
local known_line
if ARGV[2] ~= 'peek' then
  local tats = {}
  for i = 1, #KEYS / 3 do
    local at = 3 * i + 1
    local line = redis.call('GET', KEYS[3 * i - 1])
    known_line = line
    local until_guest, v, since, guest, from_guest, last
    if line and string.find(line, NO_JOBS, -24) then
      until_guest, v, since, guest, from_guest, last = string.match(line, QUIET)
    end
    local quiet = not line or until_guest and v + 0 < LAST_TAG and since - LOOK <= now
    local stored = quiet and redis.call('GET', KEYS[3 * i - 2])
    local size, tat = tonumber(ARGV[at]), not stored and 0 or tonumber(stored)
    local own_rate = quiet and string.find(ARGV[at + 2], '^t %d+;[%d/]+;')
    if size == 0 or not own_rate or not tat then
      tats = nil
      break
    end
    local passes = tat - ARGV[at + 1]
    if passes > now then
      tats = nil
      if ARGV[2] ~= 'guest' or #KEYS > 3 or not line then break end
      local wait = string.match(ARGV[3], '^%d+ %x+ (%d*) $')
      local capacity, queue = string.match(ARGV[at + 2], '^t (%d+);[^;]+;%d+ %d+ %d+ %d+ (%d*)')
      if wait and queue ~= '0' and tat - now <= capacity + STALE then
        guest = guest + 0
        local due = guest - GUESTS <= passes and max(guest, passes) or passes
        if due - now <= (tonumber(wait) or math.huge) then
          guest = math.min(due + size, passes + GUESTS)
          local text = until_guest .. format(INTEGER, guest) .. from_guest
          local until_ = max(last + 0, guest)
          redis.call('SET', KEYS[3 * i - 1], text, 'PX', format(INTEGER, ceil((until_ - now + KEPT) / 1000)))
        end
        local number = ' ' .. INTEGER
        return format('-1 1' .. number .. number .. number .. ' 0' .. number, now, passes, due, tat)
      end
      break
    end
    tats[i] = (tat > now and tat or now) + size
  end
  if tats then
    local reply = format(INTEGER, now)
    for i = 1, #tats do
      local tat = tats[i]
      local text = format(INTEGER, tat)
      redis.call('SET', KEYS[3 * i - 2], text, 'PX', format(INTEGER, ceil((tat - now + KEPT) / 1000)))
      reply = reply .. ' 0 ' .. text
    end
    return reply
  end
end
