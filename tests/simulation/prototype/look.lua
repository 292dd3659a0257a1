-- ARGV: owner, free, first ids by ",", cost, interval, burst us, most wakes
local L = open(1, ARGV[1], '', '', tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]))
local o = owner(L, ARGV[1]); o.free, o.deaf, o.dirty = tonumber(ARGV[2]), false, true
L.appt = 0
local n = wake(L, ARGV[1], tonumber(ARGV[7]))
local woken = o.woken > 0 and call('ZRANGEBYLEX', L.o, '[w' .. o.name, '(w' .. o.name .. '~', 'LIMIT', 0, 256) or {}
local gone = {}
if ARGV[3] ~= '' then
  local ids = {}
  for i in string.gmatch(ARGV[3], '[^,]+') do ids[#ids+1] = i end
  for i, e in ipairs(call('HMGET', L.e, unpack(ids))) do if not e or sub(e, 3, 10) ~= o.name then gone[#gone+1] = ids[i] end end
end
close(L)
return n .. '|' .. table.concat(L.mine, ',') .. '|' .. #woken .. '|' .. #gone
