--[[
  The short way of a job that waits for one token bucket, kept at its own rate, in whose line each job costs one: it joins
  the line, comes back and finds no unit, or comes back and passes. Comes after fast_bucket.lua, and before all that costs
  more to set up than this decision.
  It answers and writes what acquire.lua would. In any other case it writes nothing, and the text behind it decides: no
  job waits, the limit is paused or slowed down, others may be set aside, the job has left the line, or gets no place.

  KEYS and ARGV  those of acquire.lua
]]
if known_line and #KEYS == 3 and ARGV[2] == 'job' then repeat
  -- As line.lua names them; `passed` are those from mean to over, which a denial leaves as they are.
  local epoch, v, gone, number, passed, since, low, longest, guest, last, least_mark, waiting, secret = string.match(
    known_line, '^([1-9]%d*) (%d+) (%d+) (%d+) 0 (%d+ [1-9]%d* 0 %d+ %d+) (%d+) (%d+) (%d+) 0 0 0 (%d+) (%d+) (%d+) '
      .. '([1-9]%d*) (%x+)$'
  )
  local b, over, under, mark, step, lead, queue, tenant =
    string.match(ARGV[6], '^t (%d+);(%d+)/?(%d*);(%d+) 1 (%d+) (%d+) (%d*) (.*)$')
  if not epoch or not b or v + 0 >= LAST_TAG or since - LOOK > now or mark - least_mark < 0 then break end
  local tat, size, a = tonumber(redis.call('GET', KEYS[1]) or nil), ARGV[4] + 0, ARGV[5] + 0
  if size == 0 or not tat or tat - now > b + STALE then break end
  under = tonumber(under) or 1
  local grace, wait, given = string.match(ARGV[3], '^(%d+) %x+ (%d*) (.*)$')
  local kept_grace = longest
  v, longest = v + 0, max(grace + 0, longest + 0)

  -- Where it stands.
  local rank, start, own, due
  if given == '' then
    local in_order = step == '0' and tenant == ''
    local last = in_order and redis.call('ZREVRANGE', KEYS[3], '0', '0', 'WITHSCORES')[2] or 0
    local tag = in_order and last or -1 - (redis.call('ZSCORE', KEYS[3], 'f ' .. tenant) or -1)
    start = max(v - lead, tag)
    own, rank = number + 1, redis.call('ZCOUNT', KEYS[3], '0', format(INTEGER, start))
  else
    local numbers, its_epoch, seal
    numbers, its_epoch, start, own, due, seal = string.match(given, '^((%d+) (%d+) (%d+) (%d+)) (%x+)$')
    if its_epoch ~= epoch then break end
    if string.sub(redis.sha1hex(secret .. ' ' .. KEYS[1] .. ' ' .. numbers), 1, 10) ~= seal then break end
    start, own, due = start + 0, own + 0, due + 0
  end
  local member = format('%016.0f 1', own)
  if due then
    rank = redis.call('ZRANK', KEYS[3], member)
    if not rank then break end
    rank = rank - redis.call('ZCOUNT', KEYS[3], '-inf', '(0')
  end
  if now >= since + longest then
    local there = math.floor(max(0, b - max(0, tat - now)) * under / over)
    if there > 0 and not (due and rank == 0) then break end
    since, low = now, there
  end

  -- When it passes.
  local ready, ahead, in_front = max(now, tat - a), rank, rank
  if due and due <= now and a < longest then ahead, in_front = ready > now and max(0, rank - AT_DOOR) or 0, 0 end
  if ahead * 1.0 * over > MOST_EXACT then break end
  local passes = ahead > 0 and max(now, max(now, tat) + ceil(ahead * over / under) - a) or ready
  local reply, three = nil, ' ' .. INTEGER .. ' ' .. INTEGER .. ' ' .. INTEGER
  if passes > now then
    if a < longest then passes = passes + ahead * math.min(math.floor(math.floor(over / under) / SLACK), MOST_SLACK) end
    passes = math.min(passes, now + FURTHEST)
    if wait ~= '' and passes - now > wait + 0 or not due and queue ~= '' and waiting - queue >= 0 then break end
    if not due then
      redis.call('ZADD', KEYS[3], format(INTEGER, start), member)
      if step ~= '0' then
        redis.call('ZADD', KEYS[3], format(INTEGER, -1 - math.min(start + step, MOST_TAG)), 'f ' .. tenant)
      end
      waiting, kept_grace = waiting + 1, longest
    end
    if step ~= '0' then redis.call('ZREMRANGEBYSCORE', KEYS[3], format(INTEGER, -1 - v), '(0') end
    last = max(last + 0, passes)
    local reason = due and due > now and 3 or ready > now and 1 or 2
    local place = epoch .. format(three, start, own, passes)
    local seal = string.sub(redis.sha1hex(secret .. ' ' .. KEYS[1] .. ' ' .. place), 1, 10)
    reply = format('-' .. INTEGER .. ' 1' .. three .. ' 0 ' .. INTEGER, reason, now, passes, passes, tat)
    reply = reply .. '|' .. place .. ' ' .. seal
  else
    if not due then break end
    tat = max(now, tat) + size
    redis.call('SET', KEYS[1], format(INTEGER, tat), 'PX', format(INTEGER, ceil((tat - now + KEPT) / 1000)))
    redis.call('ZREM', KEYS[3], member)
    local mean, others, over_since = string.match(passed, '^(%d+)( .* )(%d+)$')
    mean = mean + math.floor((MEAN_ONE - mean) / MEAN_PART)
    over_since = rank > 0 and (over_since + 0 > 0 and math.min(over_since + 0, now) or now) or 0
    passed = format(INTEGER, mean) .. others .. format(INTEGER, over_since)
    v, gone, waiting = max(v, start), gone + 1, waiting - 1
    low = max(math.min(low + 0, in_front), low - 1)
    reply = format(INTEGER .. ' 0 ' .. INTEGER, now, tat)
  end
  number = max(number + 0, own)
  local head = epoch .. format(three, v, gone, number)
  local until_guest = head .. ' 0 ' .. passed .. format(three, since, low, kept_grace) .. ' 0 0 0 '
  local from_guest = format(three, last, least_mark, waiting) .. ' ' .. secret
  guest = guest + 0
  local lives = format(INTEGER, max(1, ceil((max(last + 0, guest) - now + KEPT) / 1000)))
  redis.call('SET', KEYS[2], until_guest .. format(INTEGER, guest) .. from_guest, 'PX', lives)
  if waiting + 0 > 0 then redis.call('PEXPIRE', KEYS[3], lives) end
  do return reply end
until true end
