--[[
  Put due jobs from a queue's scheduled jobs into the queue, unless one of RQ's schedulers does it.

  KEYS[1]    the lock that RQ's scheduler holds for the queue
  KEYS[2]    the queue's scheduled jobs: sorted set by the instant to come back, seconds since the epoch
  KEYS[3]    the queue: list
  KEYS[4]    how late each line is in which its jobs stand, seconds: hash
  KEYS[4+i]  job i: hash

  ARGV[1]    now, as RQ writes instants: text
  ARGV[2]    "", or the name of a line: then only the jobs that wait in it are put into the queue, due or not
  ARGV[3]    of that line only jobs that are due in so many seconds, or later; "" any
  ARGV[3+i]  job i: its id; in the order in which they are due

  Returns    how many were put into the queue

  Writes     KEYS[2] loses them. KEYS[3] gets them: jobs that the user scheduled at its end, or front if they ask
             for it, as RQ's scheduler does, up to the first that a limit denied. In place of this one the due job that
             stands first in its line goes to the front. Only one of these, because the worker that promotes takes it
             at once: more would stand before jobs that come due later.
             KEYS[4+i] gets its new status, and a mark if it comes before it is due; if the user scheduled it, its ttl.
             A job whose line has become later since it was denied stays, and gets the instant at which it is due now.
             A job with RQ's own limit takes a slot of it, or goes to those that wait for one, in RQ's own keys: the
             set rq:rl-keys, the hash rq:rl:<key>, the sorted sets rq:rl:<key>:allowed and rq:rl:<key>:rate_limited.
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local SOON = 0.03
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end

-- What job i noted as it got the instant *score*; nil: it got this one otherwise.
local function noted_of(i, score)
  local due, base, late, latest, start, lane = string.match(
    redis.call('HGET', KEYS[4 + i], 'throttlekit_line') or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  if tonumber(due) ~= score then return nil end
  return {
    base = base, late = tonumber(late), latest = tonumber(latest), place = start .. ' ' .. lane,
    start = tonumber(start), lane = lane,
  }
end

-- RQ's own limit, `rate_limit=`: a job that comes back needs a slot of it again, and may have to wait for it.
local function waits_for_rq(key, id)
  local own = redis.call('HMGET', key, 'rate_limit_key', 'rate_limit_concurrency')
  local most = own[1] and own[1] ~= '' and tonumber(own[2] or nil)
  if not most then return false end
  local rq, at = string.match(KEYS[1], '^(.-):scheduler%-lock:'), string.format('%.6f', now)
  local limit = rq .. ':rl:' .. own[1]
  redis.call('SADD', rq .. ':rl-keys', own[1])
  redis.call('HSET', limit, 'concurrency', own[2])
  if redis.call('ZSCORE', limit .. ':allowed', id) then return false end
  if redis.call('ZCARD', limit .. ':rate_limited') == 0 and redis.call('ZCARD', limit .. ':allowed') < most then
    redis.call('ZADD', limit .. ':allowed', at, id)
    return false
  end
  redis.call('ZADD', limit .. ':rate_limited', at, id)
  redis.call('HSET', key, 'status', 'rate_limited')
  return true
end

local function put_in(i, front)
  local id = ARGV[3 + i]
  redis.call('ZREM', KEYS[2], id)
  local status = redis.call('HGET', KEYS[4 + i], 'status')
  if not status or status == 'canceled' or waits_for_rq(KEYS[4 + i], id) then return 0 end
  redis.call('HSET', KEYS[4 + i], 'status', 'queued', 'enqueued_at', ARGV[1])
  if front then redis.call('LPUSH', KEYS[3], id) else redis.call('RPUSH', KEYS[3], id) end
  return 1
end

local wanted, least = ARGV[2], tonumber(ARGV[3])
local count, first, start, lane = 0, nil, nil, nil
for i = 1, #ARGV - 3 do
  local score = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[3 + i]) or nil)
  local carried = score and redis.call('HGET', KEYS[4 + i], 'throttlekit')
  if carried then
    local noted = noted_of(i, score)
    local late = noted and tonumber(redis.call('HGET', KEYS[4], noted.lane) or nil)
    local due = score
    if late then due = math.max(score, math.min(score + late - noted.late, noted.latest)) end
    if due > score then
      redis.call('HSET', KEYS[4 + i], 'throttlekit_line',
        string.format('%.6f %s %.6f %.6f ', due, noted.base, late, noted.latest) .. noted.place)
      redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[3 + i])
    end
    if wanted ~= '' then
      if string.find(carried, '"' .. wanted .. '"', 1, true) and (not least or due - now >= least) then
        redis.call('HDEL', KEYS[4 + i], 'throttlekit_early')
        if due - now > SOON then
          redis.call('HSET', KEYS[4 + i], 'throttlekit_early', string.format('%.3f', due - now))
        end
        if put_in(i, true) == 1 then return 1 end
      end
    elseif due <= now and not first then
      first, start, lane = i, noted and noted.start, noted and noted.lane
    elseif due <= now and lane and noted and noted.lane == lane and noted.start < start then
      first, start = i, noted.start
    end
  elseif score and score <= now and wanted == '' and not first then
    local job = redis.call('HMGET', KEYS[4 + i], 'enqueue_at_front', 'ttl', 'enqueue_at_front_on_retry', 'ended_at')
    local put = put_in(i, job[1] == '1' or (job[3] == '1' and job[4] and job[4] ~= ''))
    if put == 1 and tonumber(job[2] or nil) then redis.call('EXPIRE', KEYS[4 + i], job[2]) end
    count = count + put
  end
end
return count + (first and put_in(first, true) or 0)
