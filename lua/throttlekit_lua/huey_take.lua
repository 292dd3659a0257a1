--[[
  Take the next job for an idle worker: one that was left in a dead worker's hands, else the first waiting job whose
  instant has come, else the first of the queue.

  KEYS[1]  the queue: list, or sorted set by falling priority
  KEYS[2]  huey's schedule: sorted set
  KEYS[3]  the waiting jobs' ids: sorted set by the instant to come back, microseconds; 0 at once
  KEYS[4]  the jobs in workers' hands of which no limit has decided yet, "<hand> <job>": sorted set by when they were
           taken, microseconds
  KEYS[5]  the worker that wakes when the next waiting job is due, when that is, microseconds, and the one that does so a
           little later, in case the first stands still: "<id> <instant> <id or ->"
  KEYS[6]  the bell at which idle workers listen: list; sorted set if the queue is one
  KEYS[7]  the waiting jobs by their ids, "<priority> <base> <line> <job>": hash; when it would be due were its
           line not late, microseconds
  KEYS[8]  how late each line is, microseconds: hash

  ARGV[1]    "1" if the queue is a sorted set, else "0"
  ARGV[2]    the worker's id
  ARGV[3]    after how long in a worker's hands a job is another's, microseconds
  ARGV[4]    a job that the worker has got from the queue while it listened, to hold it in hand; else ""
  ARGV[5]    the hand: 16 random characters, so that two jobs that are equal byte for byte are two members of KEYS[4]
  ARGV[5+i]  a text: jobs of the queue in which it is found may be held to limits; "" is found in all

  Returns  {job, -1, 1 if it is in the worker's hand, its base and its line if it waited}, or what the worker does
           without one: {nil, wait, leads}. It waits for so many microseconds, -1 any, and listens at the bell and the
           queue, unless it leads: then it alone keeps the time.

  Writes   KEYS[1] loses the job, or KEYS[2], KEYS[3] and KEYS[7] do. KEYS[4] gets it, unless no limit can hold it. Jobs
           whose line has become later since they went back are due as much later in KEYS[3]. Those that are not in
           KEYS[2] any more are dropped. KEYS[5] names the worker if it leads; as it stops
           to, or if there is no leader and a job is due soon, another one is woken by KEYS[6]. What is
           written after a job is removed from the queue was read before: a key of another type is an error while the
           job is still there.
]]
local SOON = 130000  -- a server that is idle notices only every 100 ms that a blocking call has timed out
local LATE, MOST = 160000, 100
local function whole(x) return string.format('%.0f', x) end
local time = redis.call('TIME')
local now, sorted = tonumber(time[1]) * 1000000 + tonumber(time[2]), ARGV[1] == '1'
local rung = redis.call(sorted and 'ZCARD' or 'LLEN', KEYS[6]) > 0
local leader, wake, second = string.match(redis.call('GET', KEYS[5]) or '', '^(%S+) (%d+) (%S+)$')

local function lead(id, due, left, other)
  id = id .. ' ' .. whole(due) .. ' ' .. other
  redis.call('SET', KEYS[5], id)
  redis.call('PEXPIRE', KEYS[5], whole(left / 1000 + 500))
end

local function next_in()
  local due = redis.call('ZRANGE', KEYS[3], '0', '0', 'WITHSCORES')[2]
  return due and tonumber(due) - now
end

local function hand_out(job, held, base, line)
  if held then redis.call('ZADD', KEYS[4], whole(now), ARGV[5] .. ' ' .. job) end
  local left = next_in()
  if leader == ARGV[2] then redis.call('DEL', KEYS[5]) end
  if left and left < SOON and (not leader or leader == ARGV[2]) then
    if sorted then redis.call('ZADD', KEYS[6], '0', '1')
    elseif not rung then redis.call('LPUSH', KEYS[6], '1') end
    redis.call('PEXPIRE', KEYS[6], '60000')
  end
  return {job, -1, held and 1 or 0, base, line}
end

if ARGV[4] ~= '' then return hand_out(ARGV[4], true) end

local left = redis.call('ZRANGE', KEYS[4], '0', '0', 'WITHSCORES')
if left[2] and tonumber(left[2]) + tonumber(ARGV[3]) <= now then
  local old = left[1]
  redis.call('ZREM', KEYS[4], old)
  return hand_out(string.sub(old, 18), true)
end

local left_in = next_in()
for _ = 1, MOST do
  if not left_in or left_in > 0 then break end
  local each = redis.call('ZRANGE', KEYS[3], '0', '0', 'WITHSCORES')
  local note = redis.call('HGET', KEYS[7], each[1]) or ''
  local priority, base, line, job = string.match(note, '^(%S+) (%S+) (%S+) (.*)$')
  local due = 0
  if job and each[2] ~= '0' then due = base + (tonumber(redis.call('HGET', KEYS[8], line) or nil) or 0) end
  if due > now then
    redis.call('ZADD', KEYS[3], whole(due), each[1])
  else
    local first = sorted and job and redis.call('ZRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2]
    if first and -tonumber(first) > tonumber(priority) then break end
    redis.call('ZREM', KEYS[3], each[1])
    redis.call('HDEL', KEYS[7], each[1])
    local there = job and redis.call('ZREM', KEYS[2], job)
    if there == 1 then return hand_out(job, true, base, line) end
  end
  left_in = next_in()
end

local job
if sorted then
  local popped = redis.call('ZPOPMIN', KEYS[1])[1]
  job = popped and string.sub(popped, 9)  -- huey writes the time before each
else
  job = redis.call('RPOP', KEYS[1])
end
if job then
  for i = 1, #ARGV - 5 do
    if string.find(job, ARGV[5 + i], 1, true) then return hand_out(job, true) end
  end
  return hand_out(job, false)
end

if not left_in then return {false, -1, 0} end
left_in = math.max(0, left_in)  -- more entries are due than one call looks at: the next call goes on at once
if left_in > SOON then return {false, left_in, 0} end
local due, me = now + left_in, ARGV[2]
if leader and leader ~= me and tonumber(wake) > now - 50000 and tonumber(wake) <= due + 1000 then
  if second ~= '-' and second ~= me then return {false, -1, 0} end
  lead(leader, tonumber(wake), left_in, me)
  return {false, left_in + LATE, 0}
end
lead(me, due, left_in, leader == me and second or '-')
return {false, left_in, 1}
