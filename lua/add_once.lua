-- Add items, each once for a job: as `add_items`, but what the job has added before is not added again.
--
-- A job that runs twice, wholly or in part, adds nothing twice, even if items were completed in between. Which
-- ids it has added is kept in the set `once:<job>`, until `once_drop`.
--
-- Keys:
--   queue       list    ids that wait
--   processing  list    ids under lease
--   gone        set     completed ids still to be swept out of `processing`
--   deadlines   zset    id -> end of its lease
--   scheduled   zset    id -> due time
--   ledger      hash    id -> leases and deliveries of this incarnation
--   events      stream  what became of items, if that is kept
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   job      text     the job's name
--   keep_ms  integer  for how long after its last addition the job is known
--   items    rest     rows as in `add_items`
-- Reply: a list, an entry per item: 1 added, 0 already there, 2 added by the job before.
-- Cost: as `add_items`, and O(1) per item.
-- Limits: as `add_items`.

-- @include check
-- @include tell
-- @include clock
-- @include keys
-- @include foreign
-- @include processing
-- @include move
-- @include admit
-- @include due
-- @include schedule
-- @include add

local once = prefix .. ':once:' .. job
local ids, before = {}, {}
for at = items + 1, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
for i, mark in ipairs(redis.call('SMISMEMBER', once, unpack(ids))) do
  before[i] = mark == 1 and 2 or nil
end
local answers, added = add_rows(before)
if #added > 0 then
  redis.call('SADD', once, unpack(added))
  redis.call('PEXPIRE', once, keep_ms)
end
return answers
