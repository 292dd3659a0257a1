--[[
  A number of slots. Mirrors throttlekit/_core/algorithms/concurrency.py. Code c.
  a, b, c  amount; lease, microseconds (0 releases a workflow's slot); and the holder: its name ends in "*3" if it has
           3 slots, and in "#" if it is a workflow, which keeps its slot between jobs
  Key      sorted set. Positive scores: each holder, by the end of its lease. Negative scores are minus a value: ":mean"
           hold, last ":granted", longest ":lease", and ":extra", the slots of all holders beyond one each, unless 0
]]
local FIRST_HOLD, LEARN, SHORTEST, KEPT = 100000, 4, 1000, 1
local AT_ONCE = 1000  -- the most holders that one call changes: the server serves no other client during the call

local function pace(c)
  local age = c.granted_at > 0 and now - c.granted_at or 0
  local hold = c.mean > 0 and math.max(c.mean, age) or math.max(FIRST_HOLD, 2 * age)
  return math.max(SHORTEST, math.floor(c.size * hold / c.a))
end

local function extra_of(holder) return (tonumber(string.match(holder, '%*(%d+)$')) or 1) - 1 end

-- Returns at most AT_ONCE of the first holders whose leases have ended, and the number of their slots beyond one each.
local function ended(c)
  local holders, extra = redis.call('ZRANGEBYSCORE', c.key, '(0', whole(now), 'LIMIT', '0', whole(AT_ONCE)), 0
  for _, holder in ipairs(holders) do extra = extra + extra_of(holder) end
  return holders, extra
end

local function holds(c)
  local till = redis.call('ZSCORE', c.key, c.c)
  return till and tonumber(till) > now
end

local function stays(c) return c.b > 0 and string.sub(c.c, -1) == '#' end

local function keep_workflow(c)
  c.add, c.longer = true, KEPT
  return true
end

algorithms.c = {
  read = function(c)
    c.mean, c.granted_at, c.longest, c.extra, c.live, c.full = 0, 0, 0, 0, 0, now
    c.kept = redis.call('ZRANGEBYSCORE', c.key, '-inf', '(0', 'WITHSCORES')
    local kept = c.kept
    for i = 1, #kept, 2 do
      if kept[i] == ':mean' then c.mean = -tonumber(kept[i + 1])
      elseif kept[i] == ':granted' then c.granted_at = -tonumber(kept[i + 1])
      elseif kept[i] == ':lease' then c.longest = -tonumber(kept[i + 1])
      elseif kept[i] == ':extra' then c.extra = -tonumber(kept[i + 1]) end
    end
    local last = redis.call('ZREVRANGE', c.key, '0', '0', 'WITHSCORES')
    c.stored = #last > 0
    if not c.stored then return end
    c.full = math.max(now, tonumber(last[2]))
    c.most = now + math.max(c.b, c.longest)
    if c.full > c.most + STALE or c.granted_at > now + STALE then
      c.stale, c.full = true, math.min(c.full, c.most)
      c.granted_at = math.min(c.granted_at, now)
    end
    c.live = redis.call('ZCOUNT', c.key, '(' .. whole(now), '+inf')
    c.held = stays(c) and holds(c)
    if c.extra > 0 and c.live > 0 then
      local holders, gone = ended(c)
      c.live = c.live + c.extra - gone
      if #holders == AT_ONCE then c.adopted = true end  -- keep() removes these holders; further ones count until then
    end
  end,
  exhaust = function() end,
  there = function(c) return max(0, c.a - c.live) end,
  ready = function(c, n)
    local over = n + c.size - max(0, c.a - c.live)
    return (over <= 0 or c.held) and now or now + quotient(over * pace(c), c.size)
  end,
  charge = function(c)
    if c.held then return keep_workflow(c) end
    c.add, c.granted_at = true, now
  end,
  settle = function(c)
    c.drop = c.by < 0 and redis.call('ZSCORE', c.key, c.c)
    if c.drop and stays(c) then
      local till = tonumber(c.drop)
      c.drop = (c.stale and math.min(till, c.most) or till) == c.granted + c.b
    end
    return c.drop
  end,
  release = function(c)
    if not holds(c) then return false end
    if c.held then return keep_workflow(c) end
    local held = math.max(1, now - c.granted)
    c.mean = c.mean > 0 and math.floor(((LEARN - 1) * c.mean + held) / LEARN) or held
    c.drop = true
    return true
  end,
  renew = function(c)
    if c.held then return keep_workflow(c) end
    if stays(c) or not holds(c) and c.live + extra_of(c.c) >= c.a then return false end
    c.add = true
    return true
  end,
  keep = function(c)
    if c.stale then
      for _, holder in ipairs(redis.call('ZREVRANGE', c.key, '0', whole(AT_ONCE - 1))) do
        if tonumber(redis.call('ZSCORE', c.key, holder)) > c.most then redis.call('ZADD', c.key, whole(c.most), holder) end
      end
    end
    local was, own = c.extra, extra_of(c.c)
    if c.drop then c.extra = c.extra - own * redis.call('ZREM', c.key, c.c) end
    if c.add or c.adopted then
      local holders, gone = ended(c)
      if #holders > 0 then
        local first = redis.call('ZCOUNT', c.key, '-inf', '0')
        redis.call('ZREMRANGEBYRANK', c.key, whole(first), whole(first + #holders - 1))
      end
      c.extra = c.live == 0 and #holders < AT_ONCE and 0 or max(0, c.extra - gone)
    end
    if c.add then
      c.longest = math.max(c.b, c.longest)
      local added = redis.call('ZADD', c.key, whole(now + c.b + (c.longer or 0)), c.c)
      c.live, c.extra = c.live + added * (1 + own), c.extra + added * own
    end
    if c.extra > 0 then redis.call('ZADD', c.key, whole(0 - c.extra), ':extra')
    elseif was > 0 then redis.call('ZREM', c.key, ':extra') end
    local latest = redis.call('ZREVRANGE', c.key, '0', '0', 'WITHSCORES')
    c.full = math.max(now, tonumber(latest[2] or nil) or 0)
    redis.call('ZADD', c.key, whole(0 - c.mean), ':mean', whole(0 - c.longest), ':lease')
    redis.call('ZADD', c.key, whole(0 - c.granted_at), ':granted')
    local last = ttl(c.full)
    redis.call('PEXPIRE', c.key, last)
  end,
  use = function(c) return c.live, c.full end,
  estimates = true,
  pace = pace,
}
