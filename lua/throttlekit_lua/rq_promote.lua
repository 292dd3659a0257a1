--[[
  Put due jobs from a queue's scheduled jobs into the queue, unless one of RQ's schedulers does it.

  KEYS[1]      the lock that RQ's scheduler holds for the queue
  KEYS[2]      the queue's scheduled jobs: sorted set by the instant to come back, seconds since the epoch
  KEYS[3]      the queue: list
  KEYS[4]      how late each line is in which its jobs stand, seconds: hash
  KEYS[4+k]    line k: the jobs of the queue that stand in it: sorted set by their place
  KEYS[4+m+i]  job i: hash

  ARGV[1]      now, as RQ writes instants: text
  ARGV[2]      "", or the name of a line: then only the jobs that wait in it are put into the queue, due or not
  ARGV[3]      of that line only jobs that are due in so many seconds, or later; "" any
  ARGV[4]      m: how many lines are named here
  ARGV[4+k]    line k: its name
  ARGV[4+m+i]  job i: its id; in the order in which they are due

  Returns      how many were put into the queue

  Writes       KEYS[2] loses them. KEYS[3] gets them: jobs that the user scheduled at its end, or front if they ask
               for it, as RQ's scheduler does, up to the first that a limit denied. In place of this one the due job
               that stands first in its line goes to the front. Only one of these, because the worker that promotes
               takes it at once: more would stand before jobs that come due later.
               KEYS[4+m+i] gets its new status, and a mark if it comes before it is due; if the user scheduled it, its
               ttl. A job whose line has become later since it was denied stays, and gets the instant at which it is due
               now; so does one behind jobs that are due later: by how far it stands behind the first of them.
]]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local SOON, NEAR = 0.03, 10
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end

local lines = tonumber(ARGV[4])
local jobs, number_of, key_of_line = #ARGV - 4 - lines, {}, {}
for k = 1, lines do key_of_line[ARGV[4 + k]] = KEYS[4 + k] end
for i = 1, jobs do number_of[ARGV[4 + lines + i]] = i end

-- What the job noted as it got the instant *score*; nil: it got this one otherwise.
local function noted_of(i, score)
  local due, base, late, latest, rest = string.match(redis.call('HGET', KEYS[4 + lines + i], 'throttlekit_line')
    or '', '^(%S+) (%S+) (%S+) (%S+) (.*)$')
  if tonumber(due) ~= score then return nil end
  return {
    i = i, base = tonumber(base), late = tonumber(late), latest = tonumber(latest), rest = rest,
    lane = string.match(rest, '^%S+ (.*)$'),
  }
end

local function put_off(noted, due, base, late)
  local i = noted.i
  redis.call('HSET', KEYS[4 + lines + i], 'throttlekit_line',
    string.format('%.6f %.6f %.6f %.6f ', due, base, late, noted.latest) .. noted.rest)
  redis.call('ZADD', KEYS[2], string.format('%.6f', due), ARGV[4 + lines + i])
end

local function put_in(i, front)
  local id = ARGV[4 + lines + i]
  redis.call('ZREM', KEYS[2], id)
  local status = redis.call('HGET', KEYS[4 + lines + i], 'status')
  if not status or status == 'canceled' then return 0 end
  redis.call('HSET', KEYS[4 + lines + i], 'status', 'queued', 'enqueued_at', ARGV[1])
  if front then redis.call('LPUSH', KEYS[3], id) else redis.call('RPUSH', KEYS[3], id) end
  return 1
end

-- Of due jobs in one line the number of the first; nil: all of them were put off behind jobs that are due later.
local function first_of(due)
  local lane, near, comes = due[1].lane, {}, nil
  local key = key_of_line[lane]
  for _, id in ipairs(key and redis.call('ZRANGE', key, '0', tostring(NEAR - 1)) or {}) do
    local score = tonumber(redis.call('ZSCORE', KEYS[2], id) or nil)
    if score and score <= now then return number_of[id] or due[1].i end
    near[#near + 1] = score
  end
  if #near == 0 then return due[1].i end
  local pace = math.max(0, near[#near] - near[1]) / math.max(1, #near - 1)
  local late = tonumber(redis.call('HGET', KEYS[4], lane) or nil) or 0
  for _, each in ipairs(due) do
    local i = each.i
    local rank = redis.call('ZRANK', key, ARGV[4 + lines + i])
    local instant = rank and math.min(near[1] + rank * pace, each.latest) or now
    if instant > now then
      put_off(each, instant, instant - late, late)
    else
      comes = each.i
    end
  end
  return comes
end

local wanted, least = ARGV[2], tonumber(ARGV[3])
local count, due, other = 0, {}, nil
for i = 1, jobs do
  local score = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[4 + lines + i]) or nil)
  local carried = score and redis.call('HGET', KEYS[4 + lines + i], 'throttlekit')
  if carried then
    local noted = noted_of(i, score)
    local late = noted and tonumber(redis.call('HGET', KEYS[4], noted.lane) or nil)
    local instant = score
    if late then instant = math.max(score, math.min(score + late - noted.late, noted.latest)) end
    if wanted ~= '' then
      if string.find(carried, '"' .. wanted .. '"', 1, true) and (not least or instant - now >= least) then
        redis.call('HDEL', KEYS[4 + lines + i], 'throttlekit_early')
        if instant - now > SOON then
          redis.call('HSET', KEYS[4 + lines + i], 'throttlekit_early', string.format('%.3f', instant - now))
        end
        if put_in(i, true) == 1 then return 1 end
      end
    elseif instant > now then
      if instant > score then put_off(noted, instant, noted.base, late) end
    elseif not noted then
      if not other and #due == 0 then other = i end
    elseif not other and (#due == 0 or noted.lane == due[1].lane) then
      due[#due + 1] = noted
    end
  elseif score and score <= now and wanted == '' and not other and #due == 0 then
    local job = redis.call('HMGET', KEYS[4 + lines + i], 'enqueue_at_front', 'ttl', 'enqueue_at_front_on_retry',
      'ended_at')
    local put = put_in(i, job[1] == '1' or (job[3] == '1' and job[4] and job[4] ~= ''))
    if put == 1 and tonumber(job[2] or nil) then redis.call('EXPIRE', KEYS[4 + lines + i], job[2]) end
    count = count + put
  end
end
local first = other or (#due > 0 and first_of(due))
return count + (first and put_in(first, true) or 0)
