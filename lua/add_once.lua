-- Add items, each once for a run of a job: as `add_items`, but what the run has added is not added again.
--
-- A job whose tasks run twice adds nothing twice, even if items were completed in between. Which ids it has
-- added is kept in the set `once:<run>`, until `once_drop`: from then on the run adds nothing at all.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   run      text     the run of the job, see `once_run`
--   keep_ms  integer  for how long after its last addition the run is known
--   items    rest     rows as in `add_items`
-- Reply: a list, an entry per item: 1 added, 0 already there, 2 added by the run before, or the run has ended.
-- Cost: as `add_items`, and O(1) per item.
-- Limits: as `add_items`.
-- Needs: check

local once = prefix .. ':once:' .. run
local ids, before = { '' }, {} -- no item has the empty id: it says that the run has ended
for at = items + 1, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
local marks = redis.call('SMISMEMBER', once, unpack(ids))
for i = 2, #marks do
  before[i - 1] = (marks[1] == 1 or marks[i] == 1) and 2 or nil
end
local answers, added = add_rows(before)
if #added > 0 then
  redis.call('SADD', once, unpack(added))
  redis.call('PEXPIRE', once, keep_ms)
end
return answers
