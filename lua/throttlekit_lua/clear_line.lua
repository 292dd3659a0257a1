--[[
  Empty waiting lines. Mirrors throttlekit/_core/line.py, `Line.cleared`. Comes after common.lua and line.lua.

  KEYS[2i-1]  the numbers of waiting line i, and KEYS[2i] the jobs in it: see line.lua

  ARGV[1]     now, microseconds; "" means the server's clock

  Returns  how many lines there were

  Writes   KEYS[2i] is deleted. So is KEYS[2i-1], or only its pause and its slowdown are left, expiring when it would have
]]
local count = 0
for i = 1, #KEYS / 2 do
  local c = {order_key = KEYS[2 * i - 1], jobs_key = KEYS[2 * i]}
  read_line(c)
  if c.line then
    local line = no_line()
    line.paused, line.from, line.emptied, line.slow = c.line.paused, c.line.from, c.line.emptied, c.line.slow
    if line.paused > 0 or line.slow then redis.call('SET', c.order_key, text_of(line), 'KEEPTTL')
    else redis.call('DEL', c.order_key) end
    count = count + 1
  end
  redis.call('UNLINK', c.jobs_key)  -- a thread of the server frees it
end
return count
