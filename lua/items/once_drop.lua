-- End a run of `add_once`, and keep its report as a result.
--
-- The ids that the run has added are dropped. As tasks may outlive the run, the server keeps for some time
-- that it has ended. Repeating the call with the same report returns the same reply, and does what an
-- interrupted call has not done.
--
-- Keys: queue
-- Arguments:
--   prefix    text     the queue's name
--   run       text     the run
--   job       text     the job's name, which becomes free; the result is kept under it
--   ended_ms  integer  how long the server keeps that the run has ended
--   keep_ms   integer  how long the result is kept; 0: there is no result
--   report    text     the report; the result is the number of ids that the run has
--       added, a space, and the report
-- Reply: how many ids the run has added; -1: it was ended before, with another report.
-- Cost: O(1); the ids are freed in the background.
-- Limits: none.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local once, result = prefix .. ':once:' .. run, prefix .. ':result:' .. job
local pointer = prefix .. ':once:' .. job .. ':run'
local open, kept = redis.call('GET', pointer), keep_ms > 0 and redis.call('GET', result) or ''
local added = redis.call('SCARD', once)
if redis.call('EXISTS', once .. ':ended') == 1 then
  local before, same = string.match(kept, '^(%d+) (.*)$')
  added = same == report and tonumber(before) or -1
else
  if keep_ms > 0 then
    redis.call('SET', result, string.format('%.0f', added) .. ' ' .. report, 'PX', keep_ms)
  end
  redis.call('SET', once .. ':ended', '1', 'PX', ended_ms)
end
redis.call('UNLINK', once)
if open == run then redis.call('UNLINK', pointer) end
return added
