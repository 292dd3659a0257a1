--[[
  Put in order what stands in a queue that one of RQ's schedulers has, and bring the next jobs of a line on time.

  KEYS[1]  the lock that RQ's scheduler holds for the queue
  KEYS[2]  the queue: list
  KEYS[3]  its jobs that stand in the same line: sorted set by their place
  KEYS[4]  its scheduled jobs: sorted set by the instant to come back, seconds since the epoch

  ARGV[1]  what the keys of jobs begin with
  ARGV[2]  the place of the job that asks
  ARGV[3]  how often the line lets a job pass, seconds; "0" if not at a steady pace
  ARGV[4]  how many more jobs may pass by now; "0": the job that asks has to wait
  ARGV[5]  how many seconds before its turn a job is to come
  ARGV[6]  how many jobs that no limit has denied may go to the front

  Returns  how many jobs of its line stand before it in the queue; 0 if no scheduler has the queue

  Writes   KEYS[2]: jobs that no limit has denied go to the front. Of another line they pass no job that is long
           overdue: where workers are the bottleneck, and new jobs come all the time, it would never be its turn.
           Jobs of the line stand in their order: RQ's scheduler puts what it brings before all others.
           KEYS[3] loses jobs that have ended or were cancelled.
           KEYS[4]: jobs of the line get new instants, without a question of their own. If the job that asks has to
           wait: those that would come by the scheduler's next look and find more before them than can pass by then.
           Else the first ones, which need not wait.
]]
local LONG, LOOK, LATE, FURTHEST, MOST = 10, 1, 0.3, 5, 128
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local every, units, early, most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000

local ids, new, line, place_of = redis.call('LRANGE', KEYS[2], '0', '255'), {}, {}, {}
local before, held_up = 0, false
for i, id in ipairs(ids) do
  local place = tonumber(redis.call('ZSCORE', KEYS[3], id) or nil)
  local carried = not place and redis.call('HGET', ARGV[1] .. id, 'throttlekit')
  if place then
    place_of[i], line[#line + 1] = place, {place, id}
    if place < tonumber(ARGV[2]) then before = before + 1 end
  elseif not carried then
    new[i] = not held_up
  else
    local due = tonumber(string.match(carried, '"slot": (%d+)') or nil)
    held_up = held_up or (due and due > 0 and now - due / 1000000 > LONG)
  end
end

local order, others = {}, {}
for i, id in ipairs(ids) do
  if new[i] and #order < most then order[#order + 1] = id
  else others[#others + 1] = not place_of[i] and id end
end
table.sort(line, function(one, other) return one[1] < other[1] end)
local next_in_line = 0
for _, id in ipairs(others) do
  if not id then next_in_line = next_in_line + 1 end
  order[#order + 1] = id or line[next_in_line][2]
end
local same = true
for i, id in ipairs(ids) do same = same and order[i] == id end
if not same then
  redis.call('LTRIM', KEYS[2], string.format('%.0f', #ids), '-1')
  for i = #order, 1, -1 do
    local id = order[i]
    redis.call('LPUSH', KEYS[2], id)
  end
end

if every == 0 then return before end

-- The first of the line that are scheduled, with their instants. Some in between are in the queue, or in workers' hands.
local first
for _ = 1, 8 do
  local gone = 0
  first = {}
  for _, id in ipairs(redis.call('ZRANGE', KEYS[3], '0', string.format('%.0f', #line + MOST))) do
    local score = tonumber(redis.call('ZSCORE', KEYS[4], id) or nil)
    local status = not score and redis.call('HGET', ARGV[1] .. id, 'status')
    if score then first[#first + 1] = {id, score}
    elseif status ~= 'queued' and status ~= 'started' then
      redis.call('ZREM', KEYS[3], id)
      gone = gone + 1
    end
  end
  if gone < MOST / 2 then break end
end

local function comes(id, rank, due)
  if due <= now then due = math.floor(now) - rank / 1000000 -- the scheduler puts the latest to the front
  else due = math.ceil(due) + math.floor(due) - due end -- as in rq_deny.lua
  redis.call('ZADD', KEYS[4], string.format('%.6f', due), id)
end

if units > 0 then
  for i = 1, math.min(#first, units + math.ceil(1 / every)) do
    local id, rank = first[i][1], #line - units + i
    local due = now + math.max(0, rank) * every - early
    if first[i][2] - due > LATE then comes(id, i, due) end
  end
else
  local by = string.format('%.6f', now + LOOK)
  local soon = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', by, 'WITHSCORES', 'LIMIT', '0', '256')
  for i = 1, #soon, 2 do
    local rank = redis.call('ZRANK', KEYS[3], soon[i])
    local due = rank and now + math.min(FURTHEST, rank * every - early)
    if due and due - tonumber(soon[i + 1]) > LOOK then comes(soon[i], rank, due) end
  end
end
return before
