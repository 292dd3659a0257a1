--[[
  Renew messages of a stream that wait in a taskiq worker, so that no other worker takes them.

  KEYS[1]  the stream

  ARGV[1]    the consumer group
  ARGV[2]    the worker's name in it
  ARGV[2+i] message i: its id

  Returns  the ids of those that are this worker's. The others are another worker's by now, or were acknowledged, and
           nothing is done with them

  Writes   KEYS[1] has the instant of now for the messages, as pending in the group.
]]
local ours = {}
for i = 1, #ARGV - 2 do
  local id = ARGV[2 + i]
  local held = redis.call('XPENDING', KEYS[1], ARGV[1], id, id, '1')[1]
  if held and held[2] == ARGV[2] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0', id, 'JUSTID')
    ours[#ours + 1] = id
  end
end
return ours
