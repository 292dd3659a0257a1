--[[
  The shortest way: every claim is a token bucket, kept at its own rate, on whose list nothing is. Grants, if each has
  room; denies a caller without a job under one bucket. Comes after clock.lua and before all that costs more to set up
  than this decision. It answers and writes what ask.lua would. In any other case it writes nothing, and the text behind it
  decides.

  KEYS and ARGV  those of at_once.lua
]]
local call = redis.call
local count, guest = math.floor(#KEYS / 5), ARGV[2] == 'guest' and ARGV[3] == ''
local quick = ARGV[2] ~= 'peek' and string.find(ARGV[5], '^%d+ %d* %x+ %d+ 0 ')
  and (#KEYS % 5 == 0 or not call('GET', KEYS[#KEYS]))
if quick then
  local tats = {}
  for i = 1, count do
    local key, record, at = KEYS[5 * i - 4], KEYS[5 * i - 3], 3 * i + 3
    local last = false
    if call('EXISTS', record) == 1 then
      local was = call('HMGET', record, 'guest', 'epoch', 'from', 'slow')
      last = not (was[2] or was[3] or was[4]) and was[1]
      if not last then
        tats = nil
        break
      end
    end
    local stored = call('GET', key)
    local size, tat = tonumber(ARGV[at]), not stored and 0 or tonumber(stored)
    if size == 0 or not tat or not string.find(ARGV[at + 2], '^t %d+;[%d/]+;') then
      tats = nil
      break
    end
    local passes = tat - ARGV[at + 1]
    if passes > now then
      tats = nil
      local capacity, queue = string.match(ARGV[at + 2], '^t (%d+);[^;]+;%d+ %d+ %d+ %d+ (%d*)')
      if not guest or count > 1 or queue == '0' or tat - now > capacity + STALE then break end
      local wait, after = tonumber(string.match(ARGV[5], '^%d+ (%d*)')), last and last + 0 or 0
      local retry = after - GUESTS <= passes and max(after, passes) or passes
      if not wait or retry - now <= wait then
        local until_ = math.min(retry + size, passes + GUESTS)
        call('HSET', record, 'guest', format(INTEGER, until_))
        call('PEXPIRE', record, format(INTEGER, ceil((until_ - now + KEPT) / 1000)))
      end
      local number = ' ' .. INTEGER
      return format('1 0' .. number .. number .. ';0' .. number .. ';;;;', now, retry, tat)
    end
    tats[i] = (tat > now and tat or now) + size
  end
  if tats then
    local uses = ''
    for i = 1, count do
      local text = format(INTEGER, tats[i])
      call('SET', KEYS[5 * i - 4], text, 'PX', format(INTEGER, ceil((tats[i] - now + KEPT) / 1000)))
      uses = (i > 1 and uses .. ' 0 ' or '0 ') .. text
    end
    local instant = format(INTEGER, now)
    return '0 0 ' .. instant .. ' ' .. instant .. ';' .. uses .. ';;;;'
  end
end
