--[[
  Decide whether every claim may pass, and charge all of them or none.
  Mirrors throttlekit/_core/acquire.py, gcra.py and line.py.

  KEYS[2i-1]  bucket of claim i: its TAT, integer microseconds
  KEYS[2i]    waiting line of claim i: "tail late guest", integer microseconds

  ARGV[1]     now, microseconds; "" means the server's clock (tests pass a number)
  ARGV[2]     who asks: "job", "guest" or "peek"
  ARGV[3]     claim of the slot that a returning job holds, from 1; "0" means it holds none
  ARGV[4]     that slot, microseconds
  ARGV[5]     how long the job will wait, microseconds; "" means as long as it takes
  ARGV[4i+2]  claim i: charge, microseconds; 0 only looks
  ARGV[4i+3]  claim i: headroom, microseconds
  ARGV[4i+4]  claim i: capacity, microseconds
  ARGV[4i+5]  claim i: spacing, microseconds

  Returns  {reason, claim, now_us, retry_us, slot_us, tat_us of each claim or -1}
           reason: 0 allowed, 1 exhausted, 2 in line, 3 early

  Writes   KEYS[2i-1] of every claim with a charge, expiring a grace time after the bucket is full:
           when allowed, or when denied and what is stored is stale. KEYS[2i] of the binding claim
           when denied and the slot is worth waiting for, expiring a grace time after its last slot; KEYS[2i] is deleted when allowed
           to a newcomer, if its line was given up. A peek, or a return before the slot, writes nothing.
]]
local GRACE, GUESTS, STALE = 5000000, 60000000, 60000000
local function whole(x) return string.format('%.0f', x) end

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local caller, place, place_slot = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local claims = #KEYS / 2
local tat, line, lives, stale = {}, {}, {}, {}

local function keep(i)
  redis.call('SET', KEYS[2 * i - 1], whole(tat[i]), 'PX', whole(math.ceil((tat[i] - now + GRACE) / 1000)))
end

for i = 1, claims do
  tat[i] = tonumber(redis.call('GET', KEYS[2 * i - 1]) or nil)
  local tail, late, guest
  lives[i] = tat[i] and now - tat[i] < GRACE
  if lives[i] then
    tail, late, guest = string.match(redis.call('GET', KEYS[2 * i]) or '', '^(%d+) (%d+) (%d+)$')
  end
  line[i] = {tonumber(tail or 0), tonumber(late or 0), tonumber(guest or 0)}
  line[i].last = math.max(line[i][1], line[i][2])
  local capacity = tonumber(ARGV[4 * i + 4])
  if tat[i] and tat[i] - now > capacity + STALE then tat[i], stale[i] = now + capacity, true end
end

local function answer(reason, claim, retry, slot)
  local reply = {reason, claim, now, retry, slot}
  for i = 1, claims do reply[5 + i] = tat[i] or -1 end
  return reply
end

local holder = place > 0 and place_slot <= now
if place > 0 and not holder and place_slot < line[place].last then
  return answer(3, place, place_slot, place_slot)
end

local reason, binding, retry, slot, opens = 0, 1, now, now, now
for i = 1, claims do
  local charge, headroom = tonumber(ARGV[4 * i + 2]), tonumber(ARGV[4 * i + 3])
  if charge > 0 then
    local ready = math.max(now, (tat[i] or 0) - headroom)
    local opens_i = ready
    if not holder then opens_i = math.max(ready, line[i].last) end
    if opens_i > now then
      retry = math.max(retry, opens_i)
      local slot_i = opens_i
      if holder then slot_i = math.max(line[i][2], opens_i)
      elseif caller == 'guest' then slot_i = math.max(line[i][3], opens_i) end
      if slot_i > slot then
        binding, slot, opens = i, slot_i, opens_i
        reason = ready > now and 1 or 2
      end
    end
  end
end

if caller == 'peek' then return answer(reason, binding, retry, slot) end

if reason == 0 then
  for i = 1, claims do
    local charge = tonumber(ARGV[4 * i + 2])
    if charge > 0 then
      tat[i] = math.max(now, tat[i] or 0) + charge
      keep(i)
      if not holder and not lives[i] then redis.call('DEL', KEYS[2 * i]) end
    end
  end
  return answer(0, 1, retry, slot)
end

for i = 1, claims do
  if stale[i] and tonumber(ARGV[4 * i + 2]) > 0 then keep(i) end
end
if slot - now > (tonumber(ARGV[5]) or math.huge) then return answer(reason, binding, retry, slot) end
local after, booked = slot + tonumber(ARGV[4 * binding + 5]), line[binding]
if holder then booked[2] = after
elseif caller == 'guest' then booked[3] = math.min(after, opens + GUESTS)
else booked[1] = after end
local last = math.max(booked[1], booked[2], booked[3])
redis.call('SET', KEYS[2 * binding], whole(booked[1]) .. ' ' .. whole(booked[2]) .. ' ' .. whole(booked[3]),
  'PX', whole(math.ceil((last - now + GRACE) / 1000)))
return answer(reason, binding, retry, slot)
