-- End stages of flow runs that were handed over to other systems, no matter which client holds
-- their items, or whether any does.
--
-- The item is removed as by `cancel_many`: a worker that still runs its handler is notified. If it has
-- become a dead letter before, and the stage is done now, that is dropped.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the name of the queue of the items
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     reference, kind (`done` or `failed`), value (the result as raw JSON; the error), …
-- Reply: two lists: an entry per row: 1 ended, 0 the stage was not waiting for its item, -2 not handled, send
--   it again; and the references of stages whose rest is to be cancelled.
-- Cost: O(log n) per row, and O(1) per item that follows.
-- Limits: at most 1,000 rows a call; it adds about 60 items.
-- Needs: check
-- Calls: cancel_many, run_forget
-- Uses: cancelled_key, unsettled_key (RARE_KEYS), call_cancel_many, keys_of_cancel_many (cancel_many),
--   arguments_at, keys_at (elsewhere), split_reference (reference), heal_run, is_marked, open_run,
--   opened_runs, read_fields, run_field (run), commit_runs, rest_of_runs (run_commit), call_run_forget,
--   keys_of_run_forget (run_forget), end_stage, room_to_add (run_step)

redis.call('HLEN', watchers)
redis.call('HLEN', options)
redis.call('HLEN', errors)
redis.call('ZCARD', cancelled_key)
redis.call('XLEN', events)
opened_runs.checked = prefix
redis.call('ZCARD', prefix .. ':dead')
redis.call('HLEN', unsettled_key)
local answers, cancelled, done = {}, {}, {}
for at = entries + 1, #ARGV, 3 do
  local home, run_id, path, mark = split_reference(ARGV[at])
  local answer = 0
  if home and room_to_add() == 0 then
    answer = -2
  elseif home then
    local run = open_run(home, run_id)
    read_fields(run, { 'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', 's:' .. path })
    heal_run(run)
    if is_marked(run, mark) and run_field(run, 's:' .. path) == 'w' then
      end_stage(run, path, ARGV[at + 1] == 'done' and 'd' or 'f', ARGV[at + 2])
      answer = 1
    end
    local state = is_marked(run, mark) and run_field(run, 's:' .. path)
    if state == 'd' or state == 'f' then -- or an interrupted call has left its item
      cancelled[#cancelled + 1], cancelled[#cancelled + 2] = run_id .. '/' .. path, '0'
      done[#done + 1] = state == 'd' and run_id .. '/' .. path or nil
    end
  end
  answers[#answers + 1] = answer
end

local refused = commit_runs(true)
if refused then return refused end
if cancelled[1] then
  call_cancel_many(keys_at(prefix, keys_of_cancel_many), arguments_at(prefix, cancelled))
end
if done[1] then call_run_forget(keys_at(prefix, keys_of_run_forget), arguments_at(prefix, done)) end
return { answers, rest_of_runs() }
