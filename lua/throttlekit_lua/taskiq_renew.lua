--[[
  Renew messages that wait in a taskiq worker: reset their idle time, so that no other worker claims them.

  KEYS[1]  the stream

  ARGV[1]    the consumer group
  ARGV[2]    the worker's name in it
  ARGV[2+i] message i: its id

  Returns  the ids of the messages that this worker still has. The other messages belong to another worker now, or were
           acknowledged, and are not changed. A message that was deleted from the stream, for example because the stream
           has a maximum length, stays this worker's: no other worker can read it.

  Writes   KEYS[1]: in the group's pending list, the delivery time of these messages is now.
]]
local ours = {}
for i = 1, #ARGV - 2 do
  local id = ARGV[2 + i]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, '1')[1]
  if pending and pending[2] == ARGV[2] then
    -- From Redis 7 on, this removes a message that was deleted from the stream from the pending list.
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0', id, 'JUSTID')
    ours[#ours + 1] = id
  elseif not pending and #redis.call('XRANGE', KEYS[1], id, id) == 0 then
    ours[#ours + 1] = id
  end
end
return ours
