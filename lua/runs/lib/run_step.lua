-- Decide what follows in a flow run when a stage or a child ends. Nothing is written here.
--
-- States of a stage or a child, in `s:<path>`: `w` entered, `x` fanned out, `d` done, `f` failed, `c`
-- cancelled, `k` skipped. A stage that can never be entered has none; its edges count as failed. What
-- a stage has ended with is resolved step by step: `todo` has the stages whose edges, or whose
-- parents, are still to be informed.
--
-- Needs: nothing
-- Gives: room_to_add, forget_child, end_stage, enter_stage, start_children, enter_batch, enter_first,
--   fail_run, is_run_active, resolve, join_decision
-- Uses: read_clock (read_clock), add_active, add_driver, add_stage_item, add_trace, begin_of, counts_of,
--   drop_from_run, opened_runs, parent_of, read_fields, run_field, set_counts, set_run, stage_definition
--   (run)

local function is_run_active(run) return run_field(run, 'state') == 'active' end

local function has_text(run, name) return (run_field(run, name) or '') ~= '' end

-- Return how many items may still be added: 60 in one call, except that the successors
-- of one stage are added together.
local function room_to_add() return math.max(0, 60 - opened_runs.added) end

-- Fail a run at once: nothing follows any more.
local function fail_run(run, reason)
  if is_run_active(run) then
    set_run(run, 'state', 'failed')
    set_run(run, 'error', reason)
  end
end

-- Return what a join of edges decides: `enter`, `skip`, `dead` (it can never be entered),
-- `fail` (the run); nil: it waits.
local function join_decision(policy, of, succeeded, failed, skipped)
  local wanted = tonumber(string.match(policy, '^n:(%d+)$'))
  local has_all = succeeded + failed + skipped >= of
  if wanted and succeeded >= wanted then
    return 'enter'
  elseif wanted and of - failed - skipped >= wanted then
    return nil
  elseif wanted then
    return (succeeded + failed > 0 and 'dead') or (has_all and 'skip') or nil
  elseif failed > 0 and (policy == 'fail' or policy == 'fail_fast') then
    return 'fail'
  elseif not has_all then
    return nil
  elseif succeeded + failed == 0 then
    return 'skip'
  end
  return (failed == 0 or policy == 'settled') and 'enter' or 'dead'
end

-- Return what a join of children decides: `d`, `f`, or `fail` (the run at once); nil: it waits.
local function children_decision(policy, total, done, failed)
  if policy == 'chain' then return (failed > 0 and 'f') or (done >= total and 'd') or nil end
  local wanted = tonumber(string.match(policy, '^n:(%d+)$'))
  if wanted then
    return (done >= wanted and 'd') or (total - failed < wanted and 'f') or nil
  elseif failed > 0 and (policy == 'fail' or policy == 'fail_fast') then
    return 'fail'
  elseif done + failed < total then
    return nil
  end
  return (failed > 0 and policy == 'all') and 'f' or 'd'
end

local function too_few(path, policy, of)
  return string.format('%s: fewer than %s of %.0f have succeeded', path, string.sub(policy, 3), of)
end

-- Note in which state a stage or a child has ended.
local function note_end(run, path, state)
  set_run(run, 's:' .. path, state)
  opened_runs.time = opened_runs.time or string.format('%.0f', read_clock())
  set_run(run, 't:' .. path, opened_runs.time)
end

local start_children

-- Enter a child: add its item, or enter what it consists of itself, a chain or a group.
local function enter_child(run, child)
  local found = stage_definition(run, child)
  if not found.children then
    set_run(run, 's:' .. child, 'w')
    add_stage_item(run, child, found)
  elseif
    start_children(run, child, found.children, found.policy or 'all', found.policy == 'chain' and 2 or 0)
  then
    add_driver(run, child)
  end
end

-- Enter the next children of a stage that has fanned out, as many as one call may add; of a chain, the next
-- one. Returns whether some are left to the holder of an item.
local function enter_batch(run, path)
  local counts, names = counts_of(run, 'j:' .. path), { 'l:' .. path }
  local first, is_chain = counts[2], counts[6] == 2
  local last = math.min(counts[1], is_chain and counts[3] + 1 or first + room_to_add())
  if not is_run_active(run) or run_field(run, 's:' .. path) ~= 'x' then return false end
  for i = first, last - 1 do
    names[#names + 1] = 'k:' .. path .. '/' .. i
  end
  read_fields(run, names)
  run.led = run_field(run, 'l:' .. path) or run.led
  for i = first, last - 1 do
    enter_child(run, path .. '/' .. i)
  end
  if last > first then
    counts[2] = last
    set_counts(run, 'j:' .. path, counts)
    add_active(run, last - first)
  end
  return last < counts[1] and not is_chain
end

-- Have a stage fan out. `kind`: 1 if its children are those of the plan, whose definitions are kept; 2 if
-- they follow each other, as the parts of a chain; else 0. Its item is done when all children are added, and
-- the stage when they are joined. Returns whether some children are left.
function start_children(run, path, total, policy, kind)
  run.joins = nil -- children wait at the end, like what begins a run
  set_run(run, 's:' .. path, 'x')
  set_run(run, 'm:' .. path, policy)
  set_counts(run, 'j:' .. path, { total, 0, 0, 0, 0, kind })
  if run.led then
    set_run(run, 'l:' .. path, run.led) -- for those that are added in later steps
  end
  return enter_batch(run, path)
end

-- Enter a stage: add its item, or its children. End it if it has neither, or its signal, or cannot begin.
local function enter_stage(run, name, todo)
  if not is_run_active(run) then return end
  local found = stage_definition(run, name)
  local given = found.signal and run_field(run, 'g:' .. name) or not found.queue and 'null'
  if found.children then
    add_active(run, 1)
    if start_children(run, name, found.children, found.policy, 1) then add_driver(run, name) end
  elseif given then
    note_end(run, name, 'd')
    set_run(run, 'r:' .. name, given)
    todo[#todo + 1] = { path = name, state = 'd', led = run.led }
  elseif found.at and begin_of(run, found.at) == false then
    local reason = 'it has no time to begin: ' .. found.at .. ' is no date and time with a zone'
    note_end(run, name, 'f')
    set_run(run, 'e:' .. name, reason)
    todo[#todo + 1] = { path = name, state = 'f', reason = name .. ': ' .. reason, led = run.led }
  else
    set_run(run, 's:' .. name, 'w')
    add_active(run, 1)
    add_stage_item(run, name, found)
  end
end

-- Count an edge of a join, and enter or skip the stage if that decides. `edge`: the place of its
-- count in `i:<stage>`. After a retry of some of the edges, the failures of the others still count: a
-- success waits for their retries. The fifth number is 1 if the stages that follow have noted that
-- this one can never be entered.
local function arrive(run, name, edge, reason, todo)
  local found = stage_definition(run, name)
  if edge == 2 and not found.of then -- its only edge
    if not run_field(run, 's:' .. name) then enter_stage(run, name, todo) end
    return
  end
  local of, policy = found.of or 1, found.join or 'all'
  if of > 1 then run.led = add_trace(run, 'l:' .. name, edge ~= 4 and run.led or nil, 16) or run.led end
  local counts = of > 1 and counts_of(run, 'i:' .. name) or {}
  for i = #counts + 1, 4 do
    counts[i] = 0
  end
  local before = join_decision(policy, of, counts[2], counts[3], counts[4])
  counts[1], counts[edge] = counts[1] + 1, counts[edge] + 1
  local decision = join_decision(policy, of, counts[2], counts[3], counts[4])
  local by_number = string.sub(policy, 1, 2) == 'n:'
  local is_decided = decision ~= before or edge == 3 or counts[1] >= of
  local is_told = decision == 'dead' and counts[5] == 1
  if decision == 'dead' and is_decided then counts[5] = 1 end
  if of > 1 then
    set_counts(run, 'i:' .. name, counts)
    if edge == 3 and policy == 'all' and not has_text(run, 'e:' .. name) then
      set_run(run, 'e:' .. name, reason) -- why it will not be entered
    end
  end
  if not decision or not is_decided or is_told or run_field(run, 's:' .. name) then
    return
  elseif decision == 'enter' then
    enter_stage(run, name, todo)
  elseif decision == 'skip' then
    set_run(run, 's:' .. name, 'k')
    todo[#todo + 1] = { path = name, state = 'k', led = run.led }
  elseif decision == 'dead' then
    reason = by_number and too_few(name, policy, of) or (of > 1 and run_field(run, 'e:' .. name)) or reason
    todo[#todo + 1] = { path = name, state = 'f', reason = reason, led = run.led }
  else
    fail_run(run, reason)
  end
  if counts[1] < of and (decision == 'enter' and by_number or policy == 'fail_fast') then
    run.rest[#run.rest + 1] = name
  end
end

-- Remove the definition of a child that is done, unless it is one of the plan; and of what it is a part of.
local forget_child
function forget_child(run, path)
  local parent = parent_of(path)
  if parent and run_field(run, 's:' .. path) == 'd' then
    if counts_of(run, 'j:' .. parent)[6] ~= 1 then drop_from_run(run, 'k:' .. path) end
    forget_child(run, parent)
  end
end

-- Inform the stage whose child has ended, and end it if that decides.
local function tell_parent(run, path, one, todo)
  read_fields(run, { 'j:' .. path, 's:' .. path, 'm:' .. path, 'e:' .. path, 'l:' .. path .. '/' })
  local led = add_trace(run, 'l:' .. path .. '/', one.led, 8)
  local counts, policy = counts_of(run, 'j:' .. path), run_field(run, 'm:' .. path) or 'all'
  local before = children_decision(policy, counts[1], counts[3], counts[4] + counts[5])
  local place = ({ d = 3, f = 4, c = 5 })[one.state]
  counts[place] = counts[place] + 1
  set_counts(run, 'j:' .. path, counts)
  forget_child(run, one.path)
  local decision = children_decision(policy, counts[1], counts[3], counts[4] + counts[5])
  if run_field(run, 's:' .. path) ~= 'x' then return end
  if place > 3 and policy == 'all' and not has_text(run, 'e:' .. path) then
    set_run(run, 'e:' .. path, one.reason)
  end
  local cut_reason
  if policy == 'chain' and not decision then
    if is_run_active(run) then
      run.led = led
      enter_batch(run, path)
      return
    end
    decision, cut_reason = 'f', path .. ': cancelled'
  end
  -- After a retry of some of the children, the failures of the others still count: a
  -- success waits for their retries.
  local are_left = counts[3] + counts[4] + counts[5] < counts[1]
  if not decision or (decision == before and place == 3 and are_left) then return end
  local reason = cut_reason or one.reason
  if decision ~= 'd' then
    reason = string.sub(policy, 1, 2) == 'n:' and too_few(path, policy, counts[1])
      or run_field(run, 'e:' .. path)
      or reason
    set_run(run, 'e:' .. path, reason)
  end
  note_end(run, path, decision == 'd' and 'd' or 'f')
  add_active(run, -1)
  if decision == 'fail' then fail_run(run, reason) end
  -- stylua: ignore
  todo[#todo + 1] = { path = path, state = decision == 'd' and 'd' or 'f', reason = reason, led = led,
    joins = true }
  if are_left and (policy == 'fail_fast' or (decision == 'd' and policy ~= 'settled')) then
    run.rest[#run.rest + 1] = path .. '/'
  end
end

-- Pass the outcome of a stage on to its successors, or of a child to its parent, and so on.
local function resolve(run, todo)
  local at = 1
  while todo[at] do
    local one = todo[at]
    local parent = parent_of(one.path)
    if parent then
      tell_parent(run, parent, one, todo)
    else
      local names, fields = stage_definition(run, one.path)['then'] or {}, {}
      for i, name in ipairs(names) do
        fields[4 * i - 3], fields[4 * i - 2], fields[4 * i - 1], fields[4 * i] =
          'n:' .. name, 's:' .. name, 'i:' .. name, 'l:' .. name
      end
      read_fields(run, fields)
      local is_good = one.state == 'd'
      if
        #names == 0
        and not is_good
        and one.state ~= 'k'
        and is_run_active(run)
        and not has_text(run, 'error')
      then
        set_run(run, 'error', one.reason) -- nothing tolerates it
      end
      for _, name in ipairs(names) do
        local is_chosen = is_good and (not one.picked or one.picked[name])
        run.led, run.joins = one.led, one.joins
        local edge = (is_chosen and 2) or ((is_good or one.state == 'k') and 4) or 3
        arrive(run, name, edge, one.reason, todo)
      end
    end
    at = at + 1
  end
  run.joins = nil
end

-- End a stage or a child that was entered: `d` with its result as raw JSON (nil: it has none), `f` with an
-- error, or `c`. `picked`: which of its successors are entered, name -> true; nil: all.
local function end_stage(run, path, state, value, picked)
  note_end(run, path, state)
  add_active(run, -1)
  if state == 'd' and value then
    set_run(run, 'r:' .. path, value)
  elseif state == 'f' then
    set_run(run, 'e:' .. path, value)
  end
  local reason = path .. ': ' .. (state == 'f' and value or 'cancelled')
  resolve(run, { { path = path, state = state, reason = reason, picked = picked, led = run.led } })
end

-- Enter the first stages of a run, as many as one call may add. If some are left, the path '' has fanned out:
-- its holder enters them. Returns whether some are left.
local function enter_first(run)
  local is_json, names = pcall(cjson.decode, run_field(run, 'first') or '[]')
  names = is_json and type(names) == 'table' and names or {}
  local counts, todo = counts_of(run, 'j:'), {}
  local from = counts[2] or 0
  local last = math.min(#names, from + room_to_add())
  if not is_run_active(run) then return false end
  for i = from + 1, last do
    enter_stage(run, names[i], todo)
  end
  if counts[1] or last < #names then
    set_run(run, 's:', last < #names and 'x' or 'd')
    set_counts(run, 'j:', { #names, last, 0, 0, 0, 1 })
    if not counts[1] then
      add_active(run, 1)
      add_driver(run, '')
    elseif last == #names then
      add_active(run, -1)
    end
  end
  resolve(run, todo)
  return last < #names
end
