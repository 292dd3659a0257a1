-- ARGV: owner, ids by "," (at most 100)
for i = 1, #KEYS / 4 do
  local L = open(i, ARGV[1], '', '')
  local ids = {}
  for id in string.gmatch(ARGV[2], '[^,]+') do ids[#ids+1] = id end
  for j, e in ipairs(call('HMGET', L.e, unpack(ids))) do if e then remove(L, ids[j], e) end end
  call('HDEL', L.e, unpack(ids))
  close(L)
end
return 'OK'
