--[[
  Go on holding a message of a stream that waits in a worker of taskiq: no other worker takes it for as long again.

  KEYS[1]  the stream

  ARGV[1]  the consumer group
  ARGV[2]  the worker's name in it
  ARGV[3]  the message's id

  Returns  1 it is this worker's, who has it as if it had come just now; 0 it is another worker's by now, or was
           acknowledged, and nothing is done

  Writes   KEYS[1] has the instant of now for the message, as pending in the group.
]]
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], '1')[1]
if not held or held[2] ~= ARGV[2] then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0', ARGV[3], 'JUSTID')
return 1
