-- Add items as `add_items` does, but each only once during a run of a job.
--
-- If a task of the job runs twice, it adds no item twice, even if items were completed in between.
-- The set `once:<run>` keeps the ids that the run has added, until `once_drop`. After that the run
-- adds nothing. If this script is interrupted, the run may not know an id that it has added, and adds
-- it again after its completion.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   run      text     the run of the job, see `once_run`
--   keep_ms  integer  how long the run is known after it has last added an item
--   items    rest     id, data, delay, mode and options, … (as in `add_items`)
-- Reply: a list with an entry per item: as `add_items`, or 2: the run has added it before, or has ended.
-- Cost: as `add_items`, plus O(1) per item.
-- Limits: as `add_items`.
-- Uses: add_rows (add), closed_error, is_closed (closed), flush (emit), values_from (lists)

if is_closed then return closed_error() end
local once = prefix .. ':once:' .. run
local ended = redis.call('EXISTS', once .. ':ended')
local before = {}
for i, known in ipairs(redis.call('SMISMEMBER', once, unpack(values_from(ARGV, items + 1, 4)))) do
  before[i] = ended + known > 0 and 2 or nil
end
local answers, added = add_rows(before)
if #added > 0 then
  redis.call('SADD', once, unpack(added))
  redis.call('PEXPIRE', once, keep_ms)
end
flush()
return answers
