-- Return until when the workers of a queue are alive: of some, or one step of a walk at a time.
--
-- After that, a client reads what they say of themselves with HSCAN or HMGET from `workers`:
-- a script would copy that twice.
--
-- Keys: heartbeats
-- Arguments:
--   now_ms  integer  the time; empty: the server's time
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many workers to return
--   asked   rest     the sessions of workers, instead of a walk
-- Reply: the time in ms, the next cursor ("0": done), then two values for each worker: its session; until
--   when its registration holds, in ms ("inf": until it leaves, "0": it is being failed).
-- Cost: O(1) per worker.
-- Limits: about `count` workers a call; a small set is returned at once.
-- Uses: now (clock), values_from (lists)

if #ARGV > asked then
  local sessions_ = values_from(ARGV, asked + 1)
  local reply = { now, '0' }
  for i, until_ in ipairs(redis.call('ZMSCORE', heartbeats, unpack(sessions_))) do
    -- One that is not there is known to stay until it leaves, as in a walk.
    reply[2 * i + 1], reply[2 * i + 2] = sessions_[i], until_ or 'inf'
  end
  return reply
end
local page = redis.call('ZSCAN', heartbeats, cursor, 'COUNT', count)
return { now, page[1], unpack(page[2]) }
