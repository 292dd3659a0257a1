--[[
  Empty waiting lines. Mirrors throttlekit/_core/line.py, `Line.cleared`. Comes after common.lua.

  KEYS[i]  waiting line i: see acquire.lua

  ARGV[1]  now, microseconds; "" means the server's clock

  Returns  how many lines there were

  Writes   KEYS[i] is deleted; or only its pause is left, expiring when it would have
]]
local count = 0
for i = 1, #KEYS do
  local c = {line_key = KEYS[i]}
  local stored = redis.call('GET', c.line_key)
  if stored then
    local pause = string.sub(stored, string.match(stored, '^%d+ %d+ %d+()'))
    if pause == '' then redis.call('DEL', c.line_key)
    else redis.call('SET', c.line_key, '0 0 0' .. pause, 'KEEPTTL') end
    count = count + 1
  end
end
return count
