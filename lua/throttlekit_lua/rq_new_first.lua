--[[
  Put the first job of a queue that no limit has denied to its front.

  KEYS[1]  the queue: list

  ARGV[1]  what the keys of jobs begin with

  Returns  whether there is one among the first MOST

  Writes   KEYS[1]
]]
local MOST = 64
for at, id in ipairs(redis.call('LRANGE', KEYS[1], '0', string.format('%.0f', MOST - 1))) do
  if redis.call('HEXISTS', ARGV[1] .. id, 'throttlekit') == 0 then
    if at > 1 then
      redis.call('LREM', KEYS[1], 1, id)
      redis.call('LPUSH', KEYS[1], id)
    end
    return 1
  end
end
return 0
