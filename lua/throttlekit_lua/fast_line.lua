--[[
  The short way of a job that waits for one token bucket, kept at its own rate, in whose line each job costs one: it joins
  the line, comes back and finds no unit, or comes back and passes. Comes after fast_bucket.lua, and before all that costs
  more to set up than this decision.
  It answers and writes what acquire.lua would. In any other case it writes nothing, and the text behind it decides: no
  job waits, the limit is paused or slowed down, others may be set aside, the job has left the line, or gets no place.

  KEYS and ARGV  those of acquire.lua
]]
if known_line and #KEYS == 3 and ARGV[2] == 'job' then repeat
  -- As line.lua names them; `passed` are those from mean to over, which a denial leaves as they are. Numbers that no step
  -- changes are written again as the text that they were: to write one anew takes a quarter of a command's time.
  local epoch, v, gone, number, passed, since, low, longest, guest, last, least_mark, waiting, secret = string.match(
    known_line, '^([1-9]%d*) (%d+) (%d+) (%d+) 0 (%d+ [1-9]%d* 0 %d+ %d+) (%d+) (%d+) (%d+) 0 0 0 (%d+) (%d+) (%d+) '
      .. '([1-9]%d*) (%x+)$'
  )
  local b, over, under, mark, step, lead, queue, tenant =
    string.match(ARGV[6], '^t (%d+);(%d+)/?(%d*);(%d+) 1 (%d+) (%d+) (%d*) (.*)$')
  if not epoch or not b then break end
  local before, looked = v + 0, since + 0
  if before >= LAST_TAG or looked - LOOK > now or mark ~= least_mark and mark - least_mark < 0 then break end
  local tat = tonumber(redis.call('GET', KEYS[1]) or nil)
  if ARGV[4] == '0' or not tat or tat - now > b + STALE then break end
  under = tonumber(under) or 1
  local grace, wait, given = string.match(ARGV[3], '^(%d+) %x+ (%d*) (.*)$')
  local kept_grace, a = longest, ARGV[5] + 0
  if grace - longest > 0 then longest = grace end
  local lies = longest + 0

  -- Where it stands.
  local rank, start, own, due, member
  local in_order = step == '0'
  if given == '' then
    local first = before - lead
    if not in_order then first = max(first, -1 - (redis.call('ZSCORE', KEYS[3], 'f ' .. tenant) or -1)) end
    start, own = format(INTEGER, first), format(INTEGER, number + 1)
    rank = redis.call('ZCOUNT', KEYS[3], '0', start)
    if in_order and rank - waiting < 0 then  -- others start later: it stands behind them too
      start = format(INTEGER, max(first, redis.call('ZREVRANGE', KEYS[3], '0', '0', 'WITHSCORES')[2] or 0))
      rank = redis.call('ZCOUNT', KEYS[3], '0', start)
    end
  else
    local numbers, its_epoch, seal
    numbers, its_epoch, start, own, due, seal = string.match(given, '^((%d+) (%d+) (%d+) (%d+)) (%x+)$')
    if its_epoch ~= epoch then break end
    if string.sub(redis.sha1hex(secret .. ' ' .. KEYS[1] .. ' ' .. numbers), 1, 10) ~= seal then break end
    due = due + 0
  end
  member = string.rep('0', 16 - #own) .. own .. ' 1'
  if due then
    rank = redis.call('ZRANK', KEYS[3], member)
    if not rank then break end
    if rank > 0 then rank = rank - redis.call('ZCOUNT', KEYS[3], '-inf', '(0') end
  end
  if now >= looked + lies then
    local there = math.floor(max(0, b - max(0, tat - now)) * under / over)
    if there > 0 and not (due and rank == 0) then break end
    since, low = format(INTEGER, now), format(INTEGER, there)
  end

  -- When it passes.
  local ready, ahead, in_front = max(now, tat - a), rank, rank
  if due and due <= now and a < lies then ahead, in_front = ready > now and max(0, rank - AT_DOOR) or 0, 0 end
  local work = ahead * 1.0 * over
  if work > MOST_EXACT then break end
  local passes = ahead > 0 and max(now, max(now, tat) + ceil(work / under) - a) or ready
  local reply
  local furthest = max(last + 0, guest + 0)
  if passes > now then
    if a < lies then passes = passes + ahead * math.min(math.floor(math.floor(over / under) / SLACK), MOST_SLACK) end
    passes = math.min(passes, now + FURTHEST)
    if wait ~= '' and passes - now > wait + 0 or not due and queue ~= '' and waiting - queue >= 0 then break end
    if not due then
      if in_order then redis.call('ZADD', KEYS[3], start, member)
      else
        local finish = format(INTEGER, -1 - math.min(start + step, MOST_TAG))
        redis.call('ZADD', KEYS[3], start, member, finish, 'f ' .. tenant)
      end
      waiting, kept_grace = format(INTEGER, waiting + 1), longest
    end
    if not in_order then redis.call('ZREMRANGEBYSCORE', KEYS[3], format(INTEGER, -1 - before), '(0') end
    local reason = due and due > now and '-3' or ready > now and '-1' or '-2'
    local told = format(INTEGER, passes)
    if passes - last > 0 then last, furthest = told, max(furthest, passes) end
    local place = epoch .. ' ' .. start .. ' ' .. own .. ' ' .. told
    local seal = string.sub(redis.sha1hex(secret .. ' ' .. KEYS[1] .. ' ' .. place), 1, 10)
    reply = reason .. ' 1 ' .. format(INTEGER, now) .. ' ' .. told .. ' ' .. told .. ' 0 ' .. format(INTEGER, tat)
      .. '|' .. place .. ' ' .. seal
  else
    local idle = now - tat
    if not due or rank > in_front and in_order and 2 * idle >= ARGV[4] + 0 then break end
    tat = max(now, tat) + ARGV[4]
    redis.call('SET', KEYS[1], format(INTEGER, tat), 'PX', format(INTEGER, ceil((tat - now + KEPT) / 1000)))
    redis.call('ZREM', KEYS[3], member)
    local mean, others, over_since = string.match(passed, '^(%d+)( .* )(%d+)$')
    mean = mean + math.floor((MEAN_ONE - mean) / MEAN_PART)
    over_since = rank > 0 and (over_since + 0 > 0 and math.min(over_since + 0, now) or now) or 0
    passed = format(INTEGER, mean) .. others .. format(INTEGER, over_since)
    v, gone, waiting = format(INTEGER, max(before, start + 0)), format(INTEGER, gone + 1), format(INTEGER, waiting - 1)
    low = format(INTEGER, max(math.min(low + 0, in_front), low - 1))
    reply = format(INTEGER, now) .. (idle > 0 and format(' ' .. INTEGER .. ' ', idle) or ' 0 ') .. format(INTEGER, tat)
  end
  if own - number > 0 then number = own end
  local until_guest = epoch .. ' ' .. v .. ' ' .. gone .. ' ' .. number .. ' 0 ' .. passed .. ' ' .. since .. ' ' .. low
    .. ' ' .. kept_grace .. ' 0 0 0 '
  local from_guest = guest .. ' ' .. last .. ' ' .. least_mark .. ' ' .. waiting .. ' ' .. secret
  local lives = format(INTEGER, max(1, ceil((furthest - now + KEPT) / 1000)))
  redis.call('SET', KEYS[2], until_guest .. from_guest, 'PX', lives)
  if waiting + 0 > 0 then redis.call('PEXPIRE', KEYS[3], lives) end
  do return reply end
until true end
