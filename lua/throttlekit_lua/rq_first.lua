--[[
  Find the job that waits first in a line.

  KEYS[1]  the jobs of its queue that stand in the line: sorted set by their place
  KEYS[2]  the queue's scheduled jobs: sorted set by the instant to come back

  Returns  its id; nil: no job waits

  Writes   KEYS[1] loses the jobs before it: they have ended, were cancelled, or are in a worker's hands, and those that
           go back come in again. At most a thousand at once: a queue that was emptied blocks no other caller.
]]
for _ = 1, 10 do
  local first = redis.call('ZRANGE', KEYS[1], '0', '99')
  if #first == 0 then return false end
  local gone = 0
  for _, id in ipairs(first) do
    if redis.call('ZSCORE', KEYS[2], id) then break end
    gone = gone + 1
  end
  if gone > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], '0', string.format('%.0f', gone - 1)) end
  if gone < #first then return first[gone + 1] end
end
return false
