-- Store the outcome of a step of a stage of a flow run, as the current holder of its item reports it.
--
-- The first outcome of a step stays.
--
-- Keys: deadlines, ledger
-- Arguments:
--   prefix     text     the name of the item's queue
--   now_ms     integer  the time; empty: the server's time
--   item       text     the id of the stage's item
--   lease      integer  the token of the holder
--   of_stage   text     home queue NUL run NUL path NUL mark
--   step       text     the name of the step
--   outcome    text     its outcome, raw JSON
-- Reply: 1 and the outcome that is stored now; 0: rejected, as the item is not
--   held under it, or its run is gone.
-- Cost: O(1), and the size of the outcome.
-- Limits: one outcome a call.
-- Uses: begin_writes (begin_writes), is_current (current), ONCE_CUT (encodings), newer_format (newer),
--   split_reference (reference), is_meant, open_run, read_fields, run_field (run)

local home, run_id, path, mark = split_reference(of_stage)
local newer = home and newer_format(home)
if newer then return redis.error_reply(newer) end
local record, score = redis.call('HGET', ledger, item), redis.call('ZSCORE', deadlines, item)
if not (home and is_current(item, lease, score, record)) then return { 0, '' } end
local run, field = open_run(home, run_id), 'o:' .. path .. ONCE_CUT .. step
read_fields(run, { 'state', 'mark', field })
local found = run_field(run, field)
if not is_meant(run, path, mark) then
  return { 0, '' }
elseif not found then
  begin_writes() -- the work is done: its outcome must be kept even then
  redis.call('HSET', run.key, field, outcome)
end
return { 1, found or outcome }
