-- Cancel a flow run: from now on no stage of it begins, and no successor is added.
--
-- It is cancelled at once; those who wait for its result are told so. Its unfinished items are cancelled after this, in
-- bounded steps, by whoever finds the note in `unsettled` that this script leaves: the caller, or a worker.
--
-- Keys: queue, watchers
-- Arguments:
--   prefix   text     the home queue's name
--   now_ms   integer  the time; empty: the server's time
--   run      text     the run's id
-- Reply: 1 cancelled; 2 it was cancelled before, and some of its items are unfinished; 0 there is no such run, or it has
--   ended.
-- Cost: O(log n) per value by which it is found.
-- Limits: none.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local key, unsettled = prefix .. ':run:' .. run, prefix .. ':unsettled'
local facts = redis.call('HMGET', key, 'state', 'active', 'flow', 'lookup', 'keep', 'ended')
local was_cancelled = facts[1] == 'cancelled' and tonumber(facts[2] or 0) > 0
if facts[1] ~= 'active' and not was_cancelled then
  return 0
end
local at = was_cancelled and tonumber(facts[6]) or read_clock()
local keep_ms = tonumber(facts[5] or 0)
-- stylua: ignore
local cancelled = { home = prefix, id = run, flow = facts[3] or '', lookup = facts[4], state = 'cancelled', at = at }
check_index(cancelled)
redis.call('HLEN', unsettled)
begin_writes() -- what is cancelled frees memory
redis.call('HSET', unsettled, '!' .. prefix .. '\0' .. run .. '\0', 'cancel')
redis.call('HSET', key, 'state', 'cancelled', 'ended', at)
index_ended(cancelled)
if keep_ms > 0 then
  local error_ = { type = 'FlowCancelled', message = 'the flow run ' .. run .. ' was cancelled' }
  local result = cjson.encode({ error = error_ })
  redis.call('SET', prefix .. ':result:' .. run, result, 'PX', keep_ms)
end
notify_watchers({ run })
return was_cancelled and 2 or 1
