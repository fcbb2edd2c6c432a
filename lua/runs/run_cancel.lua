-- Cancel a flow run: from now on no stage of it begins, and no successor is added.
--
-- It is cancelled at once, and those that wait for its result are notified. Then its unfinished items are
-- cancelled in bounded steps by the client that finds the note in `unsettled`, which is left for this: the
-- caller, or a worker that maintains the queue.
--
-- Keys: queue, watchers
-- Arguments:
--   prefix     text     the home queue's name
--   now_ms     integer  the time; empty: the server's time
--   of_run     text     the run's id
--   as_failed  text     what a stage that waits for it fails with; empty: that is cancelled, too
-- Reply: 1 cancelled; 2 it was cancelled or has failed before, and its unfinished items are to be cancelled;
--   0 it has ended; -1 there is no such run.
-- Cost: O(log n) per value by which it is found.
-- Limits: none.
-- Uses: open_run, read_fields, run_field, run_number, set_run (run), commit_runs (run_commit)

redis.call('LLEN', queue)
redis.call('HLEN', watchers)
local it = open_run(prefix, of_run)
read_fields(it, { 'state', 'active', 'error', 'mark' })
local state = run_field(it, 'state')
if not state then
  return -1
elseif state ~= 'active' and run_number(it, 'active') <= 0 then
  return 0
end
it.rest[1] = ''
if state == 'active' then
  set_run(it, 'state', 'cancelled')
  if as_failed ~= '' or run_field(it, 'error') then set_run(it, 'error', as_failed) end
end
it.ends = true -- publish it again, if an interrupted call has not
return commit_runs() or (state == 'active' and 1 or 2)
