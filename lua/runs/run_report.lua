-- End stages of flow runs that were handed over to other systems, or wait for a signal, no matter
-- which client holds their items, or whether any does.
--
-- A signal ends a stage that waits for it, until its time is over, and is kept for one that does not
-- wait yet. It is given once.
--
-- The item is removed as by `cancel_many`: a worker that still runs its handler is notified. If it has
-- become a dead letter before, and the stage is done now, that is dropped.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the name of the queue of the items
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     reference, kind (`done`, `failed` or `signal`), value (the result, or the signal, as
--       raw JSON; the error), …
-- Reply: two lists: an entry per row: 1 ended, or the run has the signal, 0 the stage was not waiting for
--   its item, -2 not handled, send it again, -3 a signal, and the run has ended; and the references of
--   stages whose rest is to be cancelled.
-- Cost: O(log n) per row, and O(1) per item that follows.
-- Limits: at most 1,000 rows a call; it adds about 60 items.
-- Needs: check
-- Calls: cancel_many, run_forget
-- Uses: cancelled_key, unsettled_key (RARE_KEYS), call_cancel_many, keys_of_cancel_many (cancel_many),
--   arguments_at, keys_at (elsewhere), newer_format (newer), read_clock (read_clock), split_reference
--   (reference), heal_run, is_marked, open_run, opened_runs, read_fields, run_field, run_number, set_run
--   (run), commit_runs, rest_of_runs (run_commit), call_run_forget, keys_of_run_forget (run_forget),
--   end_stage, is_run_active, room_to_add (run_step)

redis.call('HLEN', watchers)
redis.call('HLEN', options)
redis.call('HLEN', errors)
redis.call('ZCARD', cancelled_key)
redis.call('XLEN', events)
opened_runs.checked = prefix
redis.call('ZCARD', prefix .. ':dead')
redis.call('HLEN', unsettled_key)
local answers, cancelled, done = {}, {}, {}

-- Give a run the signal for a stage.
local function give_signal(run, path, value)
  local state, until_ = run_field(run, 's:' .. path), run_number(run, 't:' .. path)
  if not is_run_active(run) then
    return -3
  elseif state == 'w' and (until_ == 0 or until_ > read_clock()) then
    end_stage(run, path, 'd', value)
    return 1
  elseif not state and not run_field(run, 'g:' .. path) then
    set_run(run, 'g:' .. path, value)
    return 1
  end
  return 0
end

for at = entries + 1, #ARGV, 3 do
  local home, run_id, path, mark = split_reference(ARGV[at])
  local answer, newer = 0, home and newer_format(home)
  if newer then return redis.error_reply(newer) end
  if home and room_to_add() == 0 then
    answer = -2
  elseif home then
    local run = open_run(home, run_id)
    read_fields(run, { 'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', 's:' .. path })
    heal_run(run)
    if is_marked(run, mark) and ARGV[at + 1] == 'signal' then
      answer = give_signal(run, path, ARGV[at + 2])
    elseif is_marked(run, mark) and run_field(run, 's:' .. path) == 'w' then
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
