-- ARGV: id, owner, free, attempt, tenant, hand, shared, then per limit cost us, interval us, burst us
local id, caller, free, tenant, shared = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[5], ARGV[7] == '1'
local lists, ok, B = {}, true, nil
for i = 1, #KEYS / 4 do                                           -- 1. look
  local L = open(i, caller, id, tenant, tonumber(ARGV[3*i+5]), tonumber(ARGV[3*i+6]), tonumber(ARGV[3*i+7]))
  lists[i] = L
  if L.exists then
    L.entry = call('HGET', L.e, id)
    L.woken = L.entry and sub(L.entry, 1, 1) == 'w'
    local o = L.owners[caller]
    if o and (o.free ~= free or o.deaf) then o.free, o.deaf, o.dirty = free, false, true end
  end
  local passes = L.units >= L.cost                                -- 2. verdict
  if passes and not (L.woken or L.turn) and L.exists then passes = L.units - L.wc - L.ts >= L.cost and not has_head(L) end
  if not passes then
    ok, L.lacks = false, L.units < L.cost
    if not B or L.cost - L.units > B.cost - B.units then B = L end
  end
end
local out
if ok then                                                        -- 3. grant
  local waited
  for _, L in ipairs(lists) do
    local tat = max(now, L.tat) + L.cost
    call('SET', L.bucket, n0(tat), 'PX', n0(math.ceil((tat - now + 5000000) / 1000)))
    L.units = L.units - L.cost
    if L.entry then
      local place = remove(L, id, L.entry)
      call('HDEL', L.e, id)
      if L.turn then call('HDEL', L.w, 't' .. id); L.ts = max(0, L.ts - L.cost) end
      if shared then L.v = max(L.v, tonumber(sub(place, 3, 18))) end
      waited = true
    end
  end
  if waited then call('SET', lists[1].bucket .. ':g:' .. id, caller .. ARGV[4], 'PX', 5000) end
  out = 'G'
else                                                              -- 3. deny
  for _, L in ipairs(lists) do
    local place
    if L.entry then place = remove(L, id, L.entry)
    else
      L.n, L.dirty = L.n + 1, true
      if shared then
        local tag = max(L.v, L.fin)
        L.w_[1], L.w_[2] = 'f' .. tenant, n0(tag + L.cost)
        place = '01' .. n16(tag) .. n10(L.n)
      else place = '01' .. n10(L.n) end
    end
    local o = owner(L, caller)
    if o.free ~= free + 1 then o.free, o.dirty = free + 1, true end
    if L == B then enter(L, id, o, place, L.cost)
    else
      if call('HLEN', L.e) == 0 then L.x = 0 end
      call('HSET', L.e, id, 'p ' .. caller .. ' ' .. place .. ' ' .. n0(L.cost))
      if (L.woken or L.turn) and not L.lacks then L.w_[#L.w_+1] = 't' .. id; L.w_[#L.w_+1] = n0(L.cost) .. ' ' .. n0(now + 1000000); L.ts = L.ts + L.cost end
    end
  end
  out = 'D'
end
for _, L in ipairs(lists) do                                      -- 4. wake and answer
  if L.exists or not ok then
    wake(L, caller, 64); close(L)
    if #L.mine > 0 then out = out .. '|' .. table.concat(L.mine, ',') end
    if L.next then out = out .. ' look ' .. n0(L.next - now) end
  end
end
return out
