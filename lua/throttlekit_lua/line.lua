--[[
  The waiting line of a claim. Mirrors throttlekit/_core/line.py and absence.py. Comes after common.lua and slowdown.lua.

  c.order_key  the line's numbers, as `line_of` takes them, the secret of its seals, and how it is slowed down; text
  c.jobs_key   sorted set: each waiting job, "number cost", by its start; and before them, by -1 - tag: "f tenant" and
               "r tenant", where that tenant's next job would start, and the next that comes in again
  c.rest       "mark cost step lead queue tenant": see `StoreClaim`; queue is empty for any
  c.line_text  what is stored of the line's numbers, or false; nil: it has not been read

  `waiting` counts the jobs. Nothing is written before `write_line`, but for what a later clock wrote.
]]
local FIRST_TAG, FAR, EXACT, BATCH = 18691697672192, 16, 32, 16
local DOUBT, MOST_DOUBT, DOUBT_LASTS, MOST_BATCH, GRACE = 4, 252, 1000000, 512, 60000
local FORMAT = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) '
  .. '(%d+) (%d+) (%d+) (%d+) (%x*) ?(.*)$'

-- A line, of its numbers as they are stored.
local function line_of(
  epoch, v, gone, number, extra, mean, dear, doubt, aside, over, since, low, grace, paused, from, emptied, guest, last,
  mark, waiting, secret, slowed
)
  if not epoch then return nil end
  return {
    epoch = epoch + 0, v = v + 0, gone = gone + 0, number = number + 0, extra = extra + 0, mean = mean + 0,
    dear = dear + 0, doubt = doubt + 0, aside = aside + 0, over = over + 0, since = since + 0, low = low + 0,
    grace = grace + 0, paused = paused + 0, from = from + 0, emptied = emptied + 0, guest = guest + 0, last = last + 0,
    mark = mark + 0, waiting = waiting + 0, secret = secret, slow = slowed,
  }
end

local function text_of(line)
  local text = format(
    string.rep(INTEGER .. ' ', 20), line.epoch, line.v, line.gone, line.number, line.extra, line.mean, line.dear,
    line.doubt, line.aside, line.over, line.since, line.low, line.grace, line.paused, line.from, line.emptied,
    line.guest, line.last, line.mark, line.waiting
  )
  return text .. line.secret .. (line.slow and ' ' .. slow_text(line.slow) or '')
end

local function read_line(c)
  local stored = c.line_text == nil and redis.call('GET', c.order_key) or c.line_text
  c.line = nil
  local line = stored and line_of(string.match(stored, FORMAT))
  if not line then return end
  local slowed = line.slow ~= ''
  line.slow = slowed and slow_in(line.slow) or nil
  if slowed and not line.slow then return end
  -- A later clock wrote it: a pause begins now, at its full length, and what a 429 asked for moves with it.
  if line.slow and slow_at(line.slow) or line.from > now or line.since > now + LOOK then
    if line.from > now then
      local by = line.from - now
      line.paused, line.from, line.emptied = line.paused - by, now, max(0, line.emptied - by)
    end
    line.since = math.min(line.since, now + LOOK)
    redis.call('SET', c.order_key, text_of(line), 'KEEPTTL')
  end
  c.line = line
end

local function no_line()
  return line_of(0, FIRST_TAG, 0, 0, 0, MEAN_ONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '')
end

-- Reads what only a job that waits, or may have to, needs of its claim.
local function read_rest(c)
  local mark, cost, step, lead, queue, tenant = string.match(c.rest, '^(%d+) (%d+) (%d+) (%d+) (%d*) (.*)$')
  c.mark, c.cost, c.step, c.lead = tonumber(mark), tonumber(cost), tonumber(step), tonumber(lead)
  c.queue, c.tenant, c.in_order = tonumber(queue), tenant, c.step == 0
end

local function begin_line(c, secret)
  local line = c.line
  if line.epoch > 0 and line.v < LAST_TAG then return end
  if line.waiting > 0 then c.anew, c.tidied = true, true end
  line.epoch = max(now, line.epoch + 1)
  line.secret, line.v, line.gone, line.number, line.extra, line.waiting = secret, FIRST_TAG, 0, 0, 0, 0
end

local function cost_of(member) return tonumber(string.sub(member, 18)) or 1 end
local function number_of(member) return tonumber(string.sub(member, 1, 16)) or 0 end
local function member_of(number, cost) return string.format('%016.0f ', number) .. whole(cost) end

local function set_aside(c, units)
  local line = c.line
  c.aside, line.gone, line.extra, line.waiting = c.aside + 1, line.gone + units, line.extra - units + 1, line.waiting - 1
end

-- Sets those aside that are not coming.
local function tidy_line(c, grace, own)
  local line = c.line
  c.aside = 0
  if line.waiting == 0 then return end
  if c.mark < line.mark then
    line.mark, line.since, line.low, c.tidied = c.mark, now + LOOK, c.there, true
    return
  end
  local looked = line.paused > 0 and line.paused + LOOK or 0
  grace = max(grace, line.grace)
  if now < max(line.since, looked) + grace then return end
  local doubt = now >= line.aside and now - line.aside <= DOUBT_LASTS + 2 * grace and line.doubt or 0
  local budgets = 1 + math.floor(doubt / DOUBT)
  local idle = math.min(line.low, c.there) * budgets
  if c.there > 0 then
    local most = math.min(MOST_BATCH, max(BATCH, math.floor(BATCH * grace / GRACE)) * budgets)
    local first = redis.call('ZRANGEBYSCORE', c.jobs_key, '0', '+inf', 'LIMIT', '0', whole(most))
    if #first == 0 then line.waiting, line.extra, c.anew = 0, 0, true end
    for _, member in ipairs(first) do
      local units = cost_of(member)
      if number_of(member) == own then break end
      if units > idle then
        c.soon = units <= c.there
        break
      end
      idle = idle - units
      set_aside(c, units)
    end
  end
  line.since, line.low, line.doubt, c.tidied = now, c.there, math.min(doubt + c.aside, MOST_DOUBT), true
  if c.aside > 0 then line.aside, line.over, c.soon = now, 0, true end
end

local function tag_of(c, kind)
  if c.line.waiting == 0 then return 0 end
  return -1 - tonumber(redis.call('ZSCORE', c.jobs_key, kind .. ' ' .. c.tenant) or -1)
end

-- Where the last job that waits starts, and the first.
local function last_of(c)
  return c.line.waiting > 0 and redis.call('ZREVRANGE', c.jobs_key, '0', '0', 'WITHSCORES')[2] or 0
end
local function front_of(c)
  return redis.call('ZRANGEBYSCORE', c.jobs_key, '0', '+inf', 'WITHSCORES', 'LIMIT', whole(c.aside), '1')[2]
end

-- Of a place's numbers, as they are written.
local function seal_of(c, numbers)
  return string.sub(redis.sha1hex(c.line.secret .. ' ' .. c.key .. ' ' .. numbers), 1, 10)
end

-- A place as a job carries it, and read again; false: it is none.
local function sealed_place(c, due)
  local number = INTEGER .. ' ' .. INTEGER
  local numbers = format(number .. ' ' .. number, c.line.epoch, c.start, c.number, due)
  return numbers .. ' ' .. seal_of(c, numbers)
end
local function place_in(text)
  local numbers, epoch, start, number, due, seal = string.match(text, '^((%d+) (%d+) (%d+) (%d+)) (%x+)$')
  if not epoch then return false end
  return {
    epoch = tonumber(epoch), start = tonumber(start), number = tonumber(number), due = tonumber(due), seal = seal,
    text = text, numbers = numbers,
  }
end

-- c.place, if the line gave it.
local function is_genuine(c)
  local line, place = c.line, c.place
  return place and place.epoch == line.epoch and place.seal == seal_of(c, place.numbers)
end

-- How many stand before the job's place, and the cost of its entry; nil: it has none. Where tenants begin at once, any
-- number of jobs has one start: its place among them is found in halves.
local function rank_of(c)
  local place, jobs_key = c.place, c.jobs_key
  local before = redis.call('ZCOUNT', jobs_key, '-inf', '(0') + c.aside
  local rank = redis.call('ZRANK', jobs_key, member_of(place.number, c.cost))
  if rank then return max(0, rank - before), c.cost end
  local function entry_at(at) return redis.call('ZRANGE', jobs_key, whole(at), whole(at))[1] end
  local low = redis.call('ZCOUNT', jobs_key, '-inf', '(' .. whole(place.start))
  local high = redis.call('ZCOUNT', jobs_key, '-inf', whole(place.start))
  while low < high do
    local middle = math.floor((low + high) / 2)
    if number_of(entry_at(middle)) < place.number then low = middle + 1 else high = middle end
  end
  local own = entry_at(low)
  return max(0, low - before), own and number_of(own) == place.number and cost_of(own) or nil
end

-- Where the job stands, or would: c.start, c.number, c.waits, c.tags, and how many stand before it.
local function stand(c, grace, first)
  local line, place, v = c.line, c.place, c.line.v - c.lead
  c.waits, c.tags = false, first and '' or 'f'
  if place and not first then
    local rank, cost = 0, nil
    if line.waiting > 0 then rank, cost = rank_of(c) end
    if cost then
      c.start, c.number, c.cost, c.waits, c.tags = place.start, place.number, cost, true, ''
      return rank
    end
    c.back = true
    if not c.in_order then v = math.min(v, front_of(c) or v) end
    local behind = v - place.start
    local late = behind > FAR * c.step or (behind > 0 and now > place.due + max(grace, line.grace))
    if late and not c.in_order then
      c.tags = 'r'
    else
      c.start, c.number, c.tags = place.start, place.number, ''
      return rank
    end
  end
  c.number = line.number + 1
  c.start = first and v - 1 or max(v, c.in_order and last_of(c) or tag_of(c, c.tags))
  if line.waiting == 0 then return 0 end
  return max(0, redis.call('ZCOUNT', c.jobs_key, '0', whole(c.start)) - c.aside)
end

-- Units of those that stand before it: about so many, at most and at least.
local function ahead_of(c, rank)
  local line = c.line
  c.rank = rank
  if line.extra == 0 or rank == 0 then return rank, rank, rank end
  local sampled, ahead = math.min(rank, EXACT), 0
  local first = redis.call('ZRANGEBYSCORE', c.jobs_key, '0', '+inf', 'LIMIT', whole(c.aside), whole(sampled))
  for _, member in ipairs(first) do ahead = ahead + cost_of(member) end
  local more = rank - sampled
  return ahead + math.floor(more * line.mean / MEAN_ONE), ahead + more * line.dear, ahead + more
end

local function pay(c)
  local line = c.line
  line.number = max(line.number, c.number)
  if c.back then line.doubt = math.floor(line.doubt / 2) end
  if c.tags == '' or c.step == 0 then return end
  c.paid = {whole(-1 - math.min(c.start + c.step, MOST_TAG)), c.tags .. ' ' .. c.tenant}
end

-- Gives a job a place that does not wait here, unless the limit is shared, or its queue bounded: then returns false.
local function promise(c, secret, due)
  if not c.ahead then read_rest(c) end
  if not c.in_order or c.queue then return false end
  if not c.ahead then  -- no job waits here
    c.line, c.aside = c.line or no_line(), 0
    begin_line(c, secret)
    if not is_genuine(c) then c.place = nil end
    stand(c, 0, false)
  end
  c.line.number, c.line.last = max(c.line.number, c.number), max(c.line.last, due)
  return true
end

local function join(c, due, grace)
  local line = c.line
  line.last, c.prune = max(line.last, due), c.step > 0
  if c.waits then return end
  if line.waiting == 0 then
    line.since, line.low, line.mark = max(line.since, now), c.there, c.mark
    line.grace, line.dear, line.over, c.anew = 0, 0, 0, true
  end
  c.joins = {whole(c.start), member_of(c.number, c.cost)}
  line.extra, line.waiting, line.grace = line.extra + c.cost - 1, line.waiting + 1, max(line.grace, grace)
  line.dear = max(line.dear, c.cost)
end

local function without(c)
  local line = c.line
  c.leaves = member_of(c.number, c.cost)
  line.extra, line.waiting, line.gone = line.extra - c.cost + 1, line.waiting - 1, line.gone + c.cost
end

local function leave_line(c)
  c.line.low = max(math.min(c.line.low, c.in_front), c.line.low - c.cost)
  if c.in_front == 0 then c.line.over = 0 end
  without(c)
end

local function unpause(c)
  local line = c.line
  line.paused, line.from, line.emptied, c.aside = 0, 0, 0, c.aside or 0
end

-- Takes out the first of those that stand before it: they were due, have not come, and their units were lost.
local function overtake(c)
  local most = math.min(c.rank, MOST_BATCH)
  local first = redis.call('ZRANGEBYSCORE', c.jobs_key, '0', '+inf', 'LIMIT', whole(c.aside), whole(most))
  for _, member in ipairs(first) do set_aside(c, cost_of(member)) end
end

local function pass(c)
  local line = c.line
  unpause(c)
  line.v = max(line.v, c.start)
  line.mean = line.mean + math.floor((MEAN_ONE * c.cost - line.mean) / MEAN_PART)
  line.low = max(math.min(line.low, c.least), line.low - c.cost)
  line.over = c.in_front > 0 and (line.over > 0 and math.min(line.over, now) or now) or 0
  if c.waits then without(c) end
  local in_order = c.in_order and not c.queue and now >= line.since
  if c.in_front > c.least and in_order and c.idle and 2 * c.idle >= c.size then overtake(c) end
end

local function write_line(c)
  local line, jobs_key = c.line, c.jobs_key
  if c.anew then redis.call('UNLINK', jobs_key)
  elseif c.aside > 0 then  -- the first of all, behind the tenants' entries
    local first = redis.call('ZCOUNT', jobs_key, '-inf', '(0')
    redis.call('ZREMRANGEBYRANK', jobs_key, whole(first), whole(first + c.aside - 1))
  end
  if c.leaves then redis.call('ZREM', jobs_key, c.leaves) end
  if c.joins then redis.call('ZADD', jobs_key, c.joins[1], c.joins[2]) end
  if c.paid and line.waiting > 0 then redis.call('ZADD', jobs_key, c.paid[1], c.paid[2]) end
  if c.prune then redis.call('ZREMRANGEBYSCORE', jobs_key, whole(-1 - line.v), '(0') end
  local last = max(line.last, line.guest, line.paused, line.slow and slow_last(line.slow) or 0)
  if line.emptied > 0 then
    local _, full = c.of.use(c)
    last = max(last, full)
  end
  redis.call('SET', c.order_key, text_of(line), 'PX', ttl(last))
  if line.waiting > 0 then redis.call('PEXPIRE', jobs_key, ttl(last)) end
end
