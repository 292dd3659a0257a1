--[[
  Take the next job for a worker: first a job that a dead worker had taken, then the first woken job, then the first job
  of the queue. Until a limit has decided, KEYS[2] records that the worker holds the job: if the worker dies, another
  worker takes it. The "hand" identifies such a record.

  KEYS[1]  the queue: list, or sorted set by falling priority
  KEYS[2]  the jobs that workers hold, "<hand> <job>": sorted set by when they were taken, microseconds
  KEYS[3]  the woken jobs, "<time> <hand> <job>": list; sorted set by falling priority if the queue is one

  ARGV[1]    "1" if the queue is a sorted set, otherwise "0"
  ARGV[2]    the time after which another worker may take a job that a worker holds, microseconds
  ARGV[3]    the hand: 16 characters, so that two jobs with the same bytes are two members of KEYS[2]
  ARGV[4]    a job that the worker has already popped from the queue; otherwise ""
  ARGV[4+i]  a text: a job that contains it may have limits; "" matches every job

  Returns  {job, hand}, with "" as the hand if the job cannot have limits; nil if there is no job
  Writes   KEYS[2] gets the job, KEYS[1] or KEYS[3] loses it. Each key that the script writes after it removed a job is
           read before it removes the job: if a key has a wrong type, the script fails while the job is in the queue.
]]
local sorted, time = ARGV[1] == '1', redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local function take_in_hand(hand, job)
  local note = hand .. ' ' .. job
  redis.call('ZADD', KEYS[2], string.format('%.0f', now), note)
  return {job, hand}
end

if ARGV[4] ~= '' then return take_in_hand(ARGV[3], ARGV[4]) end

local left = redis.call('ZRANGE', KEYS[2], '0', '0', 'WITHSCORES')
local old = left[1]
if old and tonumber(left[2]) + tonumber(ARGV[2]) <= now then
  redis.call('ZREM', KEYS[2], old)
  return take_in_hand(ARGV[3], string.sub(old, 18))
end

local first = sorted and redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2]
for _ = 1, 100 do
  if sorted then
    local woken = redis.call('ZRANGE', KEYS[3], '0', '0', 'WITHSCORES')
    if not woken[1] or (first and tonumber(first) < tonumber(woken[2])) then break end
    old = redis.call('ZPOPMIN', KEYS[3])[1]
  else
    old = redis.call('RPOP', KEYS[3])
    if not old then break end
  end
  -- If the job is not in KEYS[2], another worker took it because its worker seemed dead, or the queue was flushed.
  if redis.call('ZSCORE', KEYS[2], string.sub(old, 18)) then
    return take_in_hand(string.sub(old, 18, 33), string.sub(old, 35))
  end
end

local job
if sorted then
  job = redis.call('ZPOPMIN', KEYS[1])[1]
  job = job and string.sub(job, 9)  -- huey puts the time before each job
else
  job = redis.call('RPOP', KEYS[1])
end
if not job then return nil end
for i = 1, #ARGV - 4 do
  if string.find(job, ARGV[4 + i], 1, true) then return take_in_hand(ARGV[3], job) end
end
return {job, ''}
