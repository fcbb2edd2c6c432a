-- Return the workers that are registered on a queue, one step of a walk at a time.
--
-- Keys: workers, heartbeats
-- Arguments:
--   now_ms  integer  the time; empty: the server's time
--   cursor  text     "0" in the first call, then the cursor of the last reply
-- Reply: the time in ms, the next cursor ("0": done), then four values for each worker: its session; until when its
--   registration holds, in ms ("inf": until it leaves, "0": it is being failed, "": unknown); what it was told last; what
--   it says of itself.
-- Cost: O(1) per worker.
-- Limits: about 100 workers a call; a small set is returned at once.

local page = redis.call('HSCAN', workers, cursor, 'COUNT', 100)
local reply = { now, page[1] }
for i = 1, #page[2], 2 do
  local worker = page[2][i]
  if string.sub(worker, 1, 5) ~= 'told:' then
    local n = #reply
    reply[n + 1], reply[n + 2] = worker, redis.call('ZSCORE', heartbeats, worker) or ''
    reply[n + 3] = redis.call('HGET', workers, 'told:' .. worker) or ''
    reply[n + 4] = page[2][i + 1]
  end
end
return reply
