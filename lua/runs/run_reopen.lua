-- Have stages and children of a failed flow run done again, with all that has failed because of them.
--
-- A stage or a child that has failed or was cancelled is entered again; the stage whose child it is has
-- fanned out again, and what could not be entered any more waits again. What continues without it stays: a
-- stage that was entered nevertheless, and children of a stage that is done. A stage that is done, and whose
-- successors were not entered since the run had failed, enters them. Each item is added again from its
-- definition, and its dead letter dropped. A stage whose time could not be read stays failed, since what
-- names the time is done: so the run ends as failed, too.
--
-- Keys: queue, watchers
-- Arguments:
--   prefix   text     the home queue's name
--   now_ms   integer  the time; empty: the server's time
--   of_run   text     the run's id
--   caller   text     an id of this retry, the same in all its calls
--   is_last  flag     1: this is the last call; then the run has no error any more
--   entries  rest     paths of stages and children
-- Reply: 1, and how many stages were reopened; 0 the run has not failed; -1 there is no such run; -2
--   some of its items are unfinished.
-- Cost: O(1) per path and per stage that follows.
-- Limits: at most 1,000 paths a call.
-- Calls: run_forget
-- Uses: begin_writes (begin_writes), arguments_at, keys_at (elsewhere), read_clock (read_clock), add_active,
--   add_driver, add_stage_item, begin_of, counts_of, drop_from_run, has_more, open_run, parent_of,
--   queue_of_stage, read_fields, run_field, run_number, set_counts, set_run, stage_definition (run),
--   commit_runs, write_run (run_commit), call_run_forget, keys_of_run_forget (run_forget), enter_stage,
--   is_run_active, join_decision, resolve (run_step)

redis.call('LLEN', queue)
redis.call('HLEN', watchers)
local it = open_run(prefix, of_run)
read_fields(it, { 'state', 'active', 'error', 'reopening', 'deleting', 'level', 'trace', 'mark', 'parent' })
-- A line feed after the id: a stage stays failed, so the run keeps an error.
local going_on = run_field(it, 'reopening')
local keeps_error = going_on == caller .. '\n'
local is_going_on = (keeps_error or going_on == caller) and is_run_active(it)
local is_idle = run_number(it, 'active') <= 0
if not run_field(it, 'state') then
  return { -1, 0 }
elseif not is_going_on then
  if run_field(it, 'state') ~= 'failed' or run_field(it, 'deleting') then
    return { 0, 0 }
  elseif not is_idle then
    return { -2, 0 }
  end
end
local reopened, letters, queues, todo = 0, {}, {}, {}

-- Return whether all stages that follow a stage were entered nevertheless.
local function is_tolerated(path)
  local names = stage_definition(it, path)['then'] or {}
  for _, name in ipairs(names) do
    if not run_field(it, 's:' .. name) then return false end
  end
  return #names > 0
end

-- Empty a field with all that changes, and remove it afterwards.
local function clear(name)
  set_run(it, name, '')
  drop_from_run(it, name)
end

-- Take back what those that follow a failed stage have noted of it, and what could not be entered for it.
local function untell_successors(path)
  for _, name in ipairs(stage_definition(it, path)['then'] or {}) do
    local of = stage_definition(it, name).of or 1
    local counts = of > 1 and counts_of(it, 'i:' .. name) or { 1, 0, 1, 0 }
    if (counts[3] or 0) > 0 then
      local was_told = of == 1 or counts[5] == 1
      counts[1], counts[3] = counts[1] - 1, counts[3] - 1
      counts[5] = nil
      if of > 1 then set_counts(it, 'i:' .. name, counts) end
      if not run_field(it, 's:' .. name) then
        if counts[3] == 0 then clear('e:' .. name) end
        if was_told then untell_successors(name) end
      end
    end
  end
end

-- Have the item of a stage or a child added, and its dead letter dropped.
local function add_again(path)
  local found, there = stage_definition(it, path), queue_of_stage(it, path)
  if path == '' or found.children then
    add_driver(it, path)
  else
    add_stage_item(it, path, found)
  end
  if not letters[there] then
    letters[there], queues[#queues + 1] = {}, there
  end
  letters[there][#letters[there] + 1] = of_run .. '/' .. path
end

-- Take back what the parent or the successors of a failed stage or child have noted of it.
local function untell(path, state)
  local parent = parent_of(path)
  if not parent then return untell_successors(path) end
  local counts, place = counts_of(it, 'j:' .. parent), state == 'f' and 4 or 5
  counts[place] = math.max(0, counts[place] - 1)
  set_counts(it, 'j:' .. parent, counts)
  local before = run_field(it, 's:' .. parent)
  if before ~= 'x' then
    set_run(it, 's:' .. parent, 'x')
    clear('e:' .. parent)
    drop_from_run(it, 't:' .. parent)
    add_active(it, 1)
    if has_more(it, parent) then
      add_again(parent) -- the worker that leases it adds the other children
    end
    untell(parent, before)
  end
end

-- Return whether a stage or child has failed or was cancelled, and whether something waits for it.
local function may_reopen(path)
  local state, top, parent = run_field(it, 's:' .. path), path, parent_of(path)
  while parent do
    local above = run_field(it, 's:' .. parent)
    if above ~= 'x' and above ~= 'f' and above ~= 'c' then return false end
    top, parent = parent, parent_of(parent)
  end
  local top_state = run_field(it, 's:' .. top)
  local waits = top_state == 'x' or not is_tolerated(top)
  return waits and (state == 'f' or state == 'c') and state
end

-- Return whether a stage has fanned out, and some of its children were not added.
local function is_adding(path) return run_field(it, 'm:' .. path) and has_more(it, path) end

-- Return whether a stage fails as often as it is entered. Then it is left as it is.
local function has_no_time(path)
  local at = stage_definition(it, path).at
  if not at or begin_of(it, at) ~= false then return false end
  set_run(it, 'error', path .. ': ' .. (run_field(it, 'e:' .. path) or ''))
  keeps_error = true
  return true
end

local function reopen(path)
  local state = run_field(it, 's:' .. path)
  if is_going_on and state == 'w' then
    add_again(path) -- an interrupted call may not have done so
  elseif state == 'd' and not parent_of(path) then
    todo[#todo + 1] = path
  elseif not run_field(it, 'm:' .. path) or is_adding(path) then
    state = may_reopen(path)
    if state and not has_no_time(path) then
      set_run(it, 's:' .. path, is_adding(path) and 'x' or 'w')
      clear('e:' .. path)
      add_active(it, 1)
      add_again(path)
      if not it.changed['t:' .. path] then drop_from_run(it, 't:' .. path) end
      untell(path, state)
      reopened = reopened + 1
    end
  end
end

-- Enter what follows a stage that was done after the run had failed.
local function enter_after(path)
  local entered = {}
  for _, name in ipairs(stage_definition(it, path)['then'] or {}) do
    local found = stage_definition(it, name)
    local counts = (found.of or 1) > 1 and counts_of(it, 'i:' .. name) or { 1, 1, 0, 0 }
    if
      not run_field(it, 's:' .. name)
      and #counts > 0
      and join_decision(found.join or 'all', found.of or 1, counts[2], counts[3], counts[4]) == 'enter'
    then
      enter_stage(it, name, entered)
      reopened = reopened + 1
    end
  end
  resolve(it, entered)
end

for row = entries + 1, #ARGV do
  reopen(ARGV[row])
end
if reopened > 0 or #todo > 0 or is_going_on then set_run(it, 'state', 'active') end
for _, path in ipairs(todo) do
  enter_after(path)
end
set_run(it, 'reopening', caller .. (keeps_error and '\n' or ''))
if reopened == 0 and not is_going_on then
  if keeps_error and not is_last then
    set_run(it, 'state', 'failed')
    begin_writes()
    write_run(it)
  end
  return { 1, 0 }
end
it.reopens, it.starts, it.indexes = true, true, true
if run_field(it, 'parent') then set_run(it, 'reopened', string.format('%.0f', read_clock())) end
drop_from_run(it, 'ended')
if is_last and run_field(it, 's:') == 'c' then -- not all of the first stages were entered
  set_run(it, 's:', 'x')
  add_active(it, 1)
  add_again('')
end
if is_last then
  if not keeps_error then clear('error') end
  drop_from_run(it, 'reopening')
end
for _, there in ipairs(queues) do
  redis.call('ZCARD', there .. ':dead')
  redis.call('ZCARD', there .. ':cancelled')
  redis.call('HLEN', there .. ':unsettled')
end
-- First, so that no later step that adds the items, if this one is interrupted, takes them for ended.
it.prepare = function()
  for _, there in ipairs(queues) do
    call_run_forget(keys_at(there, keys_of_run_forget), arguments_at(there, letters[there]))
  end
end
return commit_runs() or { 1, reopened }
