--[[
  The fastest path of decide.lua, for limits whose state is one value: a bucket, a window or a log. If no job waits and
  no limit is paused or slowed down, it grants a request, replies to a peek, or computes the retry time of a caller
  without a job. The rest of the script would do the same, but takes longer to set up. In any other case this part
  writes nothing, and the rest decides. Runs after clock.lua, and ring.lua for a log. KEYS and ARGV: see at_once.lua.
]]
local call = redis.call
local floor, match, sub = math.floor, string.match, string.sub
do
  local claims = floor(#KEYS / 5)
  local head, two = #ARGV - 3 * claims, INTEGER .. ' ' .. INTEGER
  local caller = head > 1 and sub(ARGV[head - 1], 1, 3) or '0 n'
  local without_job, peeks = caller == '0 n' and (head < 2 or ARGV[head] == ''), caller == '0 p'
  local opens = sub(caller, 1, 2) == '0 '
  local uses, was, rows, binding, passes, pace, after = '', '', (claims > 1 or peeks) and {}, 1, now, 0, 0
  -- The text that a grant writes for the current claim, and its end; for a log, also its place, and the log's head.
  local text, last, place, top
  for i = 1, claims do
    local at, key, record = head + 3 * i - 2, KEYS[5 * i - 4], KEYS[5 * i - 3]
    local terms, size, a, asked = ARGV[at], ARGV[at + 1] + 0, ARGV[at + 2] + 0, 0
    opens = opens and size > 0
    if opens and call('EXISTS', record) == 1 then
      local list = without_job and call('HMGET', record, 'retry', 'epoch', 'from', 'slow') or {}
      opens = not (list[2] or list[3] or list[4]) and list[1]
      asked = (opens or 0) + 0
    end
    if not opens then break end
    -- When the claim passes; the used units, and when the limit is full; `later`: these two values after the grant.
    local code, ready, used, full, later, b, c = sub(terms, 1, 2), nil, 0, now, nil, nil, nil
    if code == 't ' then
      full = tonumber(call('GET', key) or now)
      if full and full - now <= a + size + STALE then
        ready, last = full - a, max(now, full) + size
        text = format(INTEGER, last)
        later = '0 ' .. text
      end
    elseif code == 'f ' then
      b, c = match(terms, '(%d+);(%-?%d+)')
      local window, number, units = floor((now + c) / b), match(call('GET', key) or '0 0', '^(%d+) (%d+)$')
      if number and number + 0 <= window then
        last = (window + 1) * b - c
        if number + 0 == window then used = units + 0 end
        if units ~= '0' then full = (number + 1) * b - c end
        ready, text = used + size <= a and now or last, format(two, window, used + size)
      end
    elseif code == 's ' then
      b, c = match(terms, '(%d+);(%d+)')
      local window, steps = floor(now / b), ceil(b / c)
      local number, before, units = match(call('GET', key) or '0 0 0', '^(%d+) (%d+) (%d+)$')
      if number and number + 0 <= window and (before + units) * steps <= MOST_EXACT then
        number, before, units = number + 0, before + 0, units + 0
        if before + units > 0 then full = (number + (units > 0 and 2 or 1)) * b end
        if number < window then before, units = number == window - 1 and units or 0, 0 end
        used = units + floor(before * (steps - floor((now - window * b) / c)) / steps)
        ready, last, text = now, (window + 2) * b, format(two .. ' ' .. INTEGER, window, before, units + size)
        if used + size > a then
          local room, fading, begin = a - units - size, before, window * b
          if room < 0 then room, fading, begin = a - size, units, begin + b end
          local faded = steps + 1 - ceil((room + 1) * steps / max(1, fading))
          ready = begin + math.min(b, max(0, faded) * c)
        end
      end
    elseif code == 'l ' then
      b = match(terms, '%d+') + 0
      local c = {key = key, all = a <= 256 and (call('GET', key) or '')}  -- a long log is read in pieces
      local begins = get(c, 0, 2)
      local ring = #begins == 14 and number(begins, 0) or 0
      local first = ring % a
      local function unit(n) return number(get(c, 2 + (first + n) % a, 1), 0) end
      local both = first > 0 and get(c, 1 + first, 2)  -- the newest unit, and the oldest one
      local newest = both and number(both, 0) or unit(a - 1)
      if newest <= now and first + size <= a and size <= 256 then
        ready = (both and size == 1 and number(both, 1) or unit(size - 1)) + b
        if newest > 0 then full = newest + b end
        if full > now then
          -- Search the first unit in the window. It is at or after the first one at the time of the last write.
          local low, high, n = ring > first and max(0, a - (ring - first) / a) or 0, a - 1, 0
          local some = math.min(8, a - (first + low) % a, high - low)
          local near = get(c, 2 + (first + low) % a, some)
          while n < some and number(near, n) + b <= now do n = n + 1 end
          low, high = low + n, n < some and low + n or high
          while low < high do
            local middle = floor((low + high) / 2)
            if unit(middle) + b <= now then low = middle + 1 else high = middle end
          end
          used = a - low
        end
        last, place, text = now + b, 2 + first, string.rep(bytes(now), size)
        top = bytes(first + size + a * (used + size)) .. bytes(number(begins, 1))
        if c.all then text, place = top .. sub(c.all, 15, 7 * place) .. text .. sub(c.all, 7 * (place + size) + 1), nil end
      end
    end
    opens = ready and (ready <= now or peeks or without_job)
    if not opens then break end
    if ready > passes then
      binding, passes, pace, after, rows = i, ready, size, asked, rows or {}
      if b then pace, opens = ceil(size * b / a), size * b < MOST_EXACT end
    end
    uses = uses .. ' ' .. (later or format(two, used + size, last))
    if rows then rows[i], place = {text, last, place, top, used, full}, nil end
  end
  local grants = opens and passes == now and not peeks
  if grants and (#KEYS % 5 == 0 or not call('GET', KEYS[#KEYS])) then  -- otherwise the request may have been granted before
    for i = claims, 1, -1 do
      if rows then text, last, place, top = rows[i][1], rows[i][2], rows[i][3], rows[i][4] end
      local key, lasts = KEYS[5 * i - 4], format(INTEGER, ceil((last - now + KEPT) / 1000))
      if place then
        call('SETRANGE', key, format(INTEGER, 7 * place), text)
        call('SETRANGE', key, '0', top)
        call('PEXPIRE', key, lasts)
      else call('SET', key, text, 'PX', lasts) end
    end
    return '0 0 ' .. instant .. ' ' .. instant .. ';' .. uses .. ';;;;'
  end
  if opens and not grants then
    for _, row in ipairs(rows) do was = was .. ' ' .. format(two, row[5], row[6]) end
    local again, reason = passes, passes > now and 1 or 0
    if not peeks then
      if after - RETRY_SPREAD <= passes then again = max(after, passes) end
      local wait, before = head > 1 and tonumber(match(ARGV[head - 1], '^%d+ %l+ %S* %d+ (%d*)')), KEYS[5 * binding - 3]
      if not wait or again - now <= wait then
        local till = math.min(again + pace, passes + RETRY_SPREAD)
        call('HSET', before, 'retry', format(INTEGER, till))
        call('PEXPIRE', before, format(INTEGER, ceil((till - now + KEPT) / 1000)))
      end
    end
    return format(two .. ' ' .. two .. ';%s;;;;', reason, binding - 1, now, again, was)
  end
end
