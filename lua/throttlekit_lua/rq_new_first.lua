--[[
  Move the first job that no limit has denied yet to the front of its queue.

  KEYS[1]  the queue: list

  ARGV[1]  the prefix of the keys of jobs

  Returns  1 if such a job is among the first MOST of the queue, otherwise 0

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
