-- Delete a flow run that has ended, in two steps: what is left of its stages is removed between them.
--
-- The first step marks the run, so that it is not reopened. The second removes it, its result
-- and its entries in the look-ups.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the home queue's name
--   now_ms   integer  the time; empty: the server's time
--   run      text     the run's id
--   is_last  flag     1: the second step
-- Reply: 1 marked, or deleted; 0 there is no such run; -1 it has not ended: nothing was done.
-- Cost: O(log n) per value by which it is found; the hash is freed in the background.
-- Limits: none.
-- Uses: cancelled_key (RARE_KEYS), check_index, index_deleted (run_index)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local key = prefix .. ':run:' .. run
local facts = redis.call('HMGET', key, 'state', 'active', 'flow', 'lookup')
if not facts[1] then
  return 0
elseif facts[1] == 'active' or (tonumber(facts[2] or 0) or 0) > 0 then
  return -1
end
if not is_last then
  redis.call('HSET', key, 'deleting', '1')
  return 1
end
local deleted = { home = prefix, id = run, flow = facts[3] or '', lookup = facts[4] }
check_index(deleted)
redis.call('ZCARD', cancelled_key)
index_deleted(deleted)
redis.call('ZREM', cancelled_key, run)
redis.call('UNLINK', prefix .. ':result:' .. run, key)
return 1
