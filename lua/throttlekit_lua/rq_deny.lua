--[[
  Put a denied job back: among its queue's scheduled jobs, or at the end of its queue if no process takes those out.

  KEYS[1]  the job: hash
  KEYS[2]  its queue's scheduled jobs: sorted set by the instant to come back, seconds since the epoch
  KEYS[3]  its queue's intermediate list
  KEYS[4]  its queue: list
  KEYS[5]  the keys of all queues: set
  KEYS[6]  the worker: hash
  KEYS[7]  the jobs of its queue that stand in the same line: sorted set by their place
  KEYS[8]  the lines in which jobs of its queue stand: sorted set by the instant of the last look, seconds
  KEYS[9]  how late each of these lines is, seconds: hash
  KEYS[10] as KEYS[7], of the line in which it stood before

  ARGV[1]  the job's id
  ARGV[2]  delay, microseconds; "" puts it at the end of its queue
  ARGV[3]  what the job carries until it asks again: text
  ARGV[4]  "1" if the worker counts this denial as a failed job, which is undone here; else "0"
  ARGV[5]  the instant at which the job expires, milliseconds, if an earlier denial noted it; else ""
  ARGV[6]  the instant at which it was enqueued, milliseconds; else ""
  ARGV[7]  "1" if RQ's scheduler brings it back, else "0". The scheduler takes all jobs that are due by a whole second
           at once, and puts one after the other at the front of the queue, which reverses them. So the instants within
           a second are mirrored here, and the jobs come out in order.
  ARGV[8]  its place in its line, which may move faster: a number; "" if no worker looks
  ARGV[9]  its meta, as its serializer writes it, with what it waits for; "" leaves it as it is
  ARGV[10] the name of its line
  ARGV[11] by how many seconds it comes sooner than it was to: text; "" removes the mark
  ARGV[12] "1" if it has waited in a line before, and the limits' stores have answered; else "0"
  ARGV[13] by how many seconds at most it becomes due later because its line does
  ARGV[14] "1" puts it at the front of its queue, in which rq_line_up.lua gives it its place; else "0"

  Returns  1 put back, 0 the job is gone, -1 it was cancelled

  Writes   KEYS[3] loses the job. KEYS[6] loses a failure. KEYS[1] gets its new status, what it carries, and
           its old expiry: a denial does not prolong a job's ttl. KEYS[2] or KEYS[4] gets the job; with
           KEYS[2], KEYS[5] gets the queue. With a place, KEYS[7] gets the job, expiring a minute after the last that
           it holds is due at the latest. Where RQ's scheduler does not bring it back, KEYS[8] gets the line as well;
           KEYS[1] notes its instant and how late the line is; and if it stands first, as before, KEYS[9] gets by how
           much this answer makes the line later: all that stand behind it become due as much later, without a question
           of their own. KEYS[10] loses the job if that is another line. KEYS[1] of a job that is gone or cancelled
           is left alone.
]]
local STEP = 0.04
local function whole(x) return string.format('%.0f', x) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

redis.call('LREM', KEYS[3], 1, ARGV[1])
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[6]) == 1 then
  redis.call('HINCRBY', KEYS[6], 'failed_job_count', '-1')
end
local status = redis.call('HGET', KEYS[1], 'status')
if not status then return 0 end
if status == 'canceled' or status == 'stopped' then return -1 end

local ttl = tonumber(redis.call('HGET', KEYS[1], 'ttl') or nil)
if ttl then
  local expires, now_ms = tonumber(ARGV[5]), now / 1000
  if not expires then
    -- Running a job makes its key last for ever, so its ttl may have to be counted from when it was enqueued.
    local left = redis.call('PTTL', KEYS[1])
    expires = left > 0 and now_ms + left or (tonumber(ARGV[6]) or 0) + ttl * 1000
    if expires <= now_ms or expires > now_ms + ttl * 1000 then expires = now_ms + ttl * 1000 end
  end
  redis.call('HSET', KEYS[1], 'throttlekit_expires', whole(expires))
  redis.call('PEXPIREAT', KEYS[1], whole(expires))
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
end

redis.call('HSET', KEYS[1], 'throttlekit', ARGV[3], 'enqueue_at_front', '1', 'started_at', '', 'worker_name', '')
if ARGV[11] == '' then redis.call('HDEL', KEYS[1], 'throttlekit_early')
else redis.call('HSET', KEYS[1], 'throttlekit_early', ARGV[11]) end
if ARGV[9] ~= '' then redis.call('HSET', KEYS[1], 'meta', ARGV[9]) end
if KEYS[10] ~= KEYS[7] then redis.call('ZREM', KEYS[10], ARGV[1]) end

-- Its place, in a line that is kept for a minute longer than until *due*, in seconds.
local function stand(due)
  redis.call('ZADD', KEYS[7], ARGV[8], ARGV[1])
  local left = (due + ARGV[13]) * 1000 - now / 1000 + 60000
  if redis.call('PTTL', KEYS[7]) < left then redis.call('PEXPIRE', KEYS[7], whole(left)) end
  return left
end

if ARGV[2] == '' then
  redis.call('HSET', KEYS[1], 'status', 'queued')
  redis.call('RPUSH', KEYS[4], ARGV[1])
elseif ARGV[14] == '1' then
  redis.call('HSET', KEYS[1], 'status', 'queued')
  redis.call('LPUSH', KEYS[4], ARGV[1])
  stand(now / 1000000)
else
  redis.call('HSET', KEYS[1], 'status', 'scheduled')
  redis.call('SADD', KEYS[5], KEYS[4])
  local due = (now + tonumber(ARGV[2])) / 1000000
  if ARGV[7] == '1' then due = math.ceil(due) + math.floor(due) - due end
  redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[1])
  if ARGV[8] ~= '' then
    local left = stand(due)
    if ARGV[7] == '1' then return 1 end
    redis.call('ZADD', KEYS[8], 'NX', string.format('%.6f', now / 1000000), ARGV[10])
    if redis.call('PTTL', KEYS[8]) < left then redis.call('PEXPIRE', KEYS[8], whole(left)) end
    local late = tonumber(redis.call('HGET', KEYS[9], ARGV[10]) or nil) or 0
    local noted = ARGV[12] == '1' and redis.call('HGET', KEYS[1], 'throttlekit_line') or ''
    local before, base, place = string.match(noted, '^(%S+) (%S+) %S+ %S+ (.*)$')
    local same = place == ARGV[8] .. ' ' .. ARGV[10]
    if same and redis.call('ZRANGE', KEYS[7], '0', '0')[1] == ARGV[1] then
      -- By how much it is later now, and a step towards how late it is in all, which is another for each tenant.
      local by = late + due - before
      late = math.min(math.max(due - base, by), by + STEP)
      redis.call('HSET', KEYS[9], ARGV[10], string.format('%.6f', late))
    end
    if redis.call('PTTL', KEYS[9]) < left then redis.call('PEXPIRE', KEYS[9], whole(left)) end
    redis.call('HSET', KEYS[1], 'throttlekit_line',
      string.format('%.6f %.6f %.6f %.6f ', due, same and base or due - late, late, due + ARGV[13]) ..
      ARGV[8] .. ' ' .. ARGV[10])
  end
end
return 1
