-- Finish stages of flow runs: store the outcome of each, add what follows, and
-- complete its item, in one step.
--
-- The hash of the run decides, see `runs/lib/run_commit`. The items that follow are added before this one is
-- completed, so an interrupted call that is repeated completes the step and adds nothing twice. For a stage
-- that had ended already, the kind does not matter: the call does what was left, and completes the item, or
-- makes it a dead letter if the stage has failed.
--
-- Kinds: `done`: value is the result as raw JSON, extra a JSON list of the successors that are entered
-- (empty: all). `failed`: value is the error. `fan`: value is a JSON list of the definitions of at
-- most 250 children, or the number of those that were stored; extra says how they are joined. `stage`:
-- store definitions, a JSON list, extra is the index of the first. `more`: add the next children.
-- `drop`: the handler was not called.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   feeds    text     to which queues flow runs may add items, besides their home: NUL NUL, home, NUL, queue,
--       NUL NUL, home, …; `*`: to all
--   entries  rest     id, token, fenced (1: accept only the current holder; else 0), reference (home
--       queue NUL run NUL path NUL mark; and NUL and the `traceparent` of the handler's run, if that is
--       traced), kind, value, extra, …
-- Reply: three lists: an entry per item: 1 completed by this call, 0 completed before, -1 rejected, as from
--   `complete_many`; for one that has failed 1 done, 0 rejected, -3, as from `fail_many`; 2 accepted, and the
--   item continues: children are to be added by `more`, or were stored; -4 nothing has changed: it chooses a
--   stage that is no successor; -2 not handled as the call adds enough already, send it again; a text: the
--   error, and nothing has changed, since its run is on a queue that is too new, or it leads to one. The
--   references of stages whose rest is to be cancelled. And the reference and the queue of each stage that
--   has failed because `feeds` does not have its queue.
-- Cost: O(1) per item, and per item that follows.
-- Limits: at most 1,000 rows a call; it adds about 60 items, and changes 30 runs.
-- Needs: check
-- Calls: fail_many
-- Uses: complete (complete), accepts_token, is_current (current), arguments_at, keys_at (elsewhere),
--   call_fail_many, keys_of_fail_many (fail_many), are_leases_ours (foreign), data_key (keys),
--   split_reference (reference), add_active, counts_of, heal_run, is_meant, open_run, opened_runs, parent_of,
--   read_fields, run_field, set_run, stage_definition, why_left (run), commit_runs, is_final, rest_of_runs
--   (run_commit), end_stage, enter_batch, enter_first, forget_child, is_run_active, room_to_add,
--   start_children (run_step)

redis.call('ZCARD', dead)
redis.call('HLEN', watchers)
redis.call('HLEN', options)
redis.call('HLEN', errors)
redis.call('XLEN', events)
opened_runs.checked, opened_runs.feeds = prefix, feeds ~= '*' and feeds or nil
local rows, ids, data_keys = {}, {}, {}
for at = entries + 1, #ARGV, 7 do
  local home, run_id, path, mark, led = split_reference(ARGV[at + 3])
  -- stylua: ignore
  local row = { id = ARGV[at], token = ARGV[at + 1], fenced = ARGV[at + 2], kind = ARGV[at + 4],
    value = ARGV[at + 5], extra = ARGV[at + 6], run = false, left = false, home = home,
    run_id = run_id, path = path, mark = mark, led = led }
  rows[#rows + 1], ids[#ids + 1], data_keys[#data_keys + 1] = row, row.id, data_key(row.id)
end

-- Open the runs of all rows, but those that are left.
local function open_runs()
  for i, row in ipairs(rows) do
    row.left = row.home and why_left(i, row.home, row.run_id)
    local run = row.home and not row.left and open_run(row.home, row.run_id)
    if run then run.rows = run.rows + 1 end
    row.run = run
  end
end

-- Read a run for the only row of it, that of a stage of its plan. The tables have room for what is set next.
local function read_for_one(run, path)
  local stage, definition = 's:' .. path, 'n:' .. path
  -- stylua: ignore
  local found = redis.call('HMGET', run.key,
    'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', stage, definition)
  -- stylua: ignore
  run.fields = { state = found[1], active = found[2], error = found[3], level = found[4], trace = found[5],
    adding = found[6], mark = found[7], [stage] = found[8], [definition] = found[9] }
  run.changed = { [stage] = false, active = false, adding = false, state = false, error = false }
end

-- Read of each run what most of its rows need.
local function read_runs()
  for _, row in ipairs(rows) do
    local run, path = row.run, row.path
    if run and run.rows == 1 and not parent_of(path) then
      read_for_one(run, path)
    elseif run then
      local names = run.names
      if not names then
        names = { 'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', 's:' .. path }
        run.names = names
      else
        names[#names + 1] = 's:' .. path
      end
      local parent = parent_of(path)
      if parent then
        names[#names + 1], names[#names + 2] = 'j:' .. parent, 's:' .. parent
        names[#names + 1], names[#names + 2] = 'm:' .. parent, 'e:' .. parent
      else
        names[#names + 1] = 'n:' .. path
      end
    end
  end
  for _, run in ipairs(opened_runs) do
    if run.names then read_fields(run, run.names) end
  end
  for _, row in ipairs(rows) do
    row.run = row.run and is_meant(row.run, row.path, row.mark) and row.run
    if row.run and row.run.fields.adding then heal_run(row.run) end
  end
end

-- Store the definitions of children, given as a table, and of the parts of those that are chains or groups.
local function store_each(run, path, children, first)
  for i, child in ipairs(children) do
    local at, parts = path .. '/' .. first + i - 1, child.parts
    child.parts = nil
    set_run(run, 'k:' .. at, cjson.encode(child)) -- texts and small numbers
    if parts then store_each(run, at, parts, 0) end
  end
  return #children
end

-- Store the definitions of children, given in JSON.
local function store_children(run, path, list, first) return store_each(run, path, cjson.decode(list), first) end

-- Return which successors a result chooses, name -> true (nil: all), and whether all of them are successors.
local function picked_by(row, run, path)
  if row.extra == '' then return nil, true end
  local picked, follows = {}, {}
  for _, name in ipairs(not parent_of(path) and stage_definition(run, path)['then'] or {}) do
    follows[name] = true
  end
  for _, name in ipairs(cjson.decode(row.extra)) do
    picked[name] = true
    if not follows[name] then return nil, false end
  end
  return picked, true
end

-- End a stage that is entered, or have it fan out. Returns an answer if its item continues.
local function step(row, run, path)
  if row.kind == 'done' then
    local picked, is_known = picked_by(row, run, path)
    if not is_known then return -4 end
    end_stage(run, path, 'd', row.value, picked)
  elseif row.kind == 'failed' then
    end_stage(run, path, 'f', row.value)
  elseif row.kind == 'drop' then
    end_stage(run, path, 'c')
  elseif row.kind == 'stage' then
    store_children(run, path, row.value, tonumber(row.extra))
    return 2
  elseif row.kind == 'fan' then
    local total = tonumber(row.value) or store_children(run, path, row.value, 0)
    if not is_run_active(run) then
      end_stage(run, path, 'c')
    elseif total == 0 then
      end_stage(run, path, 'd', '[]')
    elseif not run_field(run, 'k:' .. path .. '/' .. total - 1) then
      return -1
    elseif start_children(run, path, total, row.extra, 0) then
      return 2
    end
  else
    return -1
  end
end

-- End a stage whose other children will not be added, since the run has ended before.
local function end_adding(run, path)
  local counts = counts_of(run, 'j:' .. path)
  if is_run_active(run) or run_field(run, 's:' .. path) ~= 'x' or counts[2] >= counts[1] then
    return
  elseif path == '' then
    set_run(run, 's:', 'c')
    add_active(run, -1)
  else
    end_stage(run, path, 'c')
  end
end

-- Finish the stage of a row; returns an answer, or how its item ends: `complete` or `fail`.
local function finish(row, i)
  local run, path = row.run, row.path
  if not run then return 'complete' end
  run.row = i
  local state, answer = run_field(run, 's:' .. path), nil
  run.led = row.led ~= '' and row.led or nil
  if state == 'w' then
    answer = step(row, run, path)
  elseif state == 'x' then
    local more = path == '' and enter_first or enter_batch
    answer = more(run, path) and 2
    end_adding(run, path)
  else
    run.ends = run.ends or is_final(run) -- publish it again
    forget_child(run, path)
  end
  return answer or (run_field(run, 's:' .. path) == 'f' and 'fail' or 'complete')
end

local changed_runs

-- Return whether a call does enough without this row.
local function is_full(row)
  local run = row.run
  if room_to_add() == 0 or (run and run.changes > 1000) or (run and not run.is_in and changed_runs == 30) then
    return true
  elseif run and not run.is_in then
    run.is_in, changed_runs = true, changed_runs + 1
  end
  return false
end

local all_exist, records, scores, none_foreign
local answers, completed, completed_at, failed, failed_at

-- Return whether the caller may end the item of a row.
local function is_valid(i, row)
  local id = row.id
  if row.kind == 'failed' then return is_current(id, tonumber(row.token), scores[i], records[i]) end
  return accepts_token(id, row.token, row.fenced == '1', records[i], scores[i], none_foreign)
    and (all_exist or redis.call('EXISTS', data_key(id)) == 1)
end

-- Decide how the items of all rows end.
local function decide()
  local seen = {}
  answers, completed, completed_at, failed, failed_at, changed_runs = {}, {}, {}, {}, {}, 0
  open_runs()
  read_runs()
  for i, row in ipairs(rows) do
    local id, ending = row.id, row.kind == 'failed' and 'fail' or 'complete'
    if not seen[id] and is_valid(i, row) then
      seen[id] = true
      ending = row.left or is_full(row) and -2 or finish(row, i)
      if row.run and id == row.run.id .. '/' .. row.path then
        row.fenced = '2' -- it was checked, and its outcome is recorded
      end
    end
    if ending == 'complete' then
      completed_at[#completed_at + 1] = i
      completed[#completed + 1], completed[#completed + 2] = id, row.token
      completed[#completed + 1] = row.fenced
    elseif ending == 'fail' then
      failed_at[#failed_at + 1] = i
      failed[#failed + 1], failed[#failed + 2], failed[#failed + 3] = id, row.token, '-1'
      failed[#failed + 1] = row.run and run_field(row.run, 'e:' .. row.path) or row.value
    else
      answers[i] = ending
    end
  end
end

all_exist = redis.call('EXISTS', unpack(data_keys)) == #ids
records = redis.call('HMGET', ledger, unpack(ids))
scores = redis.call('ZMSCORE', deadlines, unpack(ids))
none_foreign = are_leases_ours(ids)
decide()
local refused = commit_runs(true, decide)
if refused then return refused end
local done = completed[1] and complete(completed, 0) or {}
local dead_ = failed[1] and call_fail_many(keys_at(prefix, keys_of_fail_many), arguments_at(prefix, failed))
  or {}
for place, i in ipairs(completed_at) do
  answers[i] = done[place]
end
for place, i in ipairs(failed_at) do
  answers[i] = dead_[place]
end
return { answers, rest_of_runs(), opened_runs.refused }
