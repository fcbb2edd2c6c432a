-- Return the flow runs of a state, one page at a time, from the one that has entered it last.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the home queue's name
--   state    text     "active", "completed", "failed" or "cancelled"
--   of_all   flag     1: runs of all flows
--   flow     text     else only those of this flow; it may be empty
--   cursor   text     empty in the first call, then that of the last reply
--   count    count    how many runs to look at
-- Reply: the next cursor (empty: this was the last page), then id and when the
--   run entered the state in ms, ….
-- Cost: O(log² n + count).
-- Limits: `count` (at most 1,000) runs a call; fewer are returned if others are of another flow.
-- Uses: page_of_runs (run_pages)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local ids, scores, next_cursor = page_of_runs(prefix .. ':runs:' .. state)
local reply = { next_cursor }
for i, id in ipairs(ids) do
  local facts = redis.call('HMGET', prefix .. ':run:' .. id, 'state', 'flow')
  -- An id stays for a while when its run has expired.
  if facts[1] == state and (of_all or facts[2] == flow) then
    reply[#reply + 1], reply[#reply + 2] = id, tonumber(scores[i])
  end
end
return reply
