--[[
  Renew messages that wait in a taskiq worker: reset their idle time, so that no other worker claims them.

  KEYS[1]  the stream

  ARGV[1]    the consumer group
  ARGV[2]    the worker's name in it
  ARGV[2+i] message i: its id

  Returns  the ids of the messages that this worker still has; then the ids of those that are in nobody's pending list
           and were deleted from the stream, for example because the stream has a maximum length. The other messages
           belong to another worker now, or were acknowledged, and are not changed.

  Writes   KEYS[1]: in the group's pending list, the delivery time of these messages is now.
]]
local ours, deleted = {}, {}
for i = 1, #ARGV - 2 do
  local id = ARGV[2 + i]
  local pending = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, '1')[1]
  if pending and pending[2] == ARGV[2] then
    -- From Redis 7 on, this removes a message that was deleted from the stream from the pending list.
    local kept = redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0', id, 'JUSTID')
    local group = #kept > 0 and ours or deleted
    group[#group + 1] = id
  elseif not pending and #redis.call('XRANGE', KEYS[1], id, id) == 0 then
    deleted[#deleted + 1] = id  -- a claim of any worker has removed it from this worker's pending list
  end
end
return {ours, deleted}
