-- Settle stages of flow runs whose items have ended by another way than `run_finish`: record what became
-- of them, and add what follows.
--
-- An item that was completed as a plain one is done, with the result `null`. A dead letter is a failure
-- with its error; a cancelled item is cancelled; one that has expired has failed. An item that has
-- vanished otherwise has failed as well, except that of a foreign stage, which is done with the result
-- `null`: clients of other libraries remove what they have done. A dead letter of a stage that is done,
-- or has fanned out, is dropped: its item had done its work before. A stage whose item could not be
-- added, as its id was taken, has failed. A run that would then add items to a queue that `feeds` does not
-- have, or to one in a format that this version does not know, is left to others.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, watchers, options, errors, events
-- Arguments:
--   prefix   text     the name of the queue of the items
--   now_ms   integer  the time; empty: the server's time
--   feeds    text     as that of `run_finish`
--   cursor   text     without ids: where to look on in `options` for items that have vanished
--       without a note; 0: at the start
--   entries  rest     ids, or `!` and a reference: its rest is cancelled, forget that it was to be; or `=`
--       and the reference of an item of this queue that is not noted; none: those that are noted, some in a
--       call, and those that are found
-- Reply: an entry per id: 1 settled, or forgotten, 0 there was nothing to settle, or it is left, -2
--   not handled, send it again; the references of stages whose rest is to be cancelled; the reference and the
--   queue of each stage that is not added, so that its run is left; the next cursor (0: all were looked at).
-- Cost: O(1) per id, and per item that follows.
-- Limits: at most 1,000 ids a call; about 100 noted ones, 100 others are looked at; it adds about 60 items.
-- Needs: check
-- Calls: run_forget
-- Uses: cancelled_key, unsettled_key (RARE_KEYS), dead_key (dead_letter), arguments_at, keys_at (elsewhere),
--   REF_CUT, WHOLE_MS (encodings), forget_facts, read_options (facts), data_key, in_chunks, read_in_chunks
--   (keys), extend (lists), split_reference (reference), forget_runs, has_more, heal_run, is_marked,
--   is_meant, is_of_stage, open_run, opened_runs, read_fields, run_field, stage_definition, why_left (run),
--   commit_runs, is_undeclared, rest_of_runs (run_commit), call_run_forget, keys_of_run_forget (run_forget),
--   end_stage, is_run_active, room_to_add (run_step)

redis.call('ZCARD', dead)
redis.call('HLEN', watchers)
redis.call('HLEN', options)
redis.call('HLEN', errors)
redis.call('HLEN', unsettled_key)
redis.call('ZCARD', cancelled_key)
redis.call('XLEN', events)
opened_runs.checked, opened_runs.feeds = prefix, feeds ~= '*' and feeds or nil
local ids, reference_of, is_given, rest, old, next_one = {}, {}, {}, {}, {}, '0'
for at = entries + 1, #ARGV do
  local given = string.match(ARGV[at], '^=(.*%z.*)$')
  local home, run_id, path = split_reference(given or '')
  ids[#ids + 1] = home and run_id .. '/' .. path or ARGV[at]
  reference_of[ids[#ids]], is_given[ids[#ids]] = home and given, home
end

-- Return whether this is the note of a rest, and no id of an item.
local function is_rest(id) return string.sub(id, 1, 1) == '!' and string.find(id, REF_CUT, 1, true) end

if ids[1] then
  for i, reference in ipairs(read_in_chunks('HMGET', unsettled_key, ids)) do
    reference_of[ids[i]] = reference_of[ids[i]] or reference
  end
else
  -- By chance: notes that are left must not hold up the others.
  local noted = redis.call('HRANDFIELD', unsettled_key, 100, 'WITHVALUES')
  for i = 1, #noted, 2 do
    if is_rest(noted[i]) then
      local home, run_id = split_reference(string.sub(noted[i], 2))
      local mark = home == prefix and redis.call('HGET', home .. ':run:' .. run_id, 'mark')
      if home == prefix and (mark == noted[i + 1] or noted[i + 1] == 'cancel') then
        rest[#rest + 1] = string.sub(noted[i], 2)
      else
        old[#old + 1] = noted[i] -- of an earlier run of this id
      end
    else
      ids[#ids + 1], reference_of[noted[i]] = noted[i], noted[i + 1]
    end
  end
  local page = redis.call('HSCAN', options, cursor, 'COUNT', 100)
  next_one = page[1]
  for i = 1, #page[2], 2 do
    local id, text = page[2][i], page[2][i + 1]
    if
      string.find(text, '"run"', 1, true)
      and not reference_of[id]
      and redis.call('EXISTS', data_key(id)) == 0
    then
      ids[#ids + 1], reference_of[id] = id, read_options(text).run or ''
    end
  end
end

-- End the stage of an item that has vanished.
local function end_vanished(run, id, path, was_completed)
  local found = stage_definition(run, path)
  local letter = redis.call('HMGET', dead_key(id), 'error', 'options')
  local dead_error = is_of_stage(run, path, letter[2]) and (letter[1] or '')
  local until_ = redis.call('ZSCORE', cancelled_key, id)
  if redis.call('EXISTS', data_key(id)) == 1 then
    end_stage(run, path, 'f', 'it could not be added: the queue has another item of its id')
  elseif dead_error then
    end_stage(run, path, 'f', dead_error)
  elseif until_ and tonumber(until_) % WHOLE_MS == 0 then
    end_stage(run, path, 'c')
  elseif until_ then
    end_stage(run, path, 'f', 'expired: no worker had begun with it in time')
  elseif run_field(run, 's:' .. path) == 'w' and (was_completed or found.foreign) then
    end_stage(run, path, 'd', 'null')
  elseif not is_run_active(run) then
    end_stage(run, path, 'c')
  else
    end_stage(run, path, 'f', 'lost: its item has vanished')
  end
end

-- Return whether the item of a stage is to be added again, as the step that adds it was interrupted.
local function is_adding(run, path)
  for _, one in ipairs(run.added) do
    if one.path == path then return true end
  end
  return false
end

-- Return whether there is an item of an id, and it is that of the stage.
local function is_there(id, home, run_id, path)
  if redis.call('EXISTS', data_key(id)) == 0 then return false end
  local at, of_run, of_path = split_reference(read_options(redis.call('HGET', options, id)).run or '')
  return at == home and of_run == run_id and of_path == path
end

local answers, over, notes, letters
local refused = {}

-- Settle the stage of an item.
local function settle_stage(i, id, of_stage, is_completed)
  local home, run_id, path, mark = split_reference(of_stage)
  local run = open_run(home, run_id)
  run.row = i
  read_fields(run, { 'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', 's:' .. path })
  -- A caller says which run it means; a note and options say what a client has written there.
  local is_its = is_given[id] and is_marked(run, mark) or not is_given[id] and is_meant(run, path, mark)
  if is_its then heal_run(run) end
  notes[#notes + 1] = id
  if is_adding(run, path) then return end
  local state = run_field(run, 's:' .. path)
  if redis.call('EXISTS', data_key(id)) == 0 then over[#over + 1] = id end
  if not is_its then
    letters[#letters + 1] = '=' .. of_stage -- of an earlier run of this id
  elseif state == 'w' or (state == 'x' and has_more(run, path)) then
    answers[i] = 1
    end_vanished(run, id, path, is_completed)
  elseif state == 'd' or state == 'x' then
    letters[#letters + 1] = '=' .. of_stage
  end
end

-- Leave what would feed a queue that the caller does not declare: a worker that does may settle it. Returns
-- whether there is such a run.
local function leave_undeclared()
  local is_news, left = false, opened_runs.left
  for _, run in ipairs(opened_runs) do
    for _, one in ipairs(run.added) do
      if not left[run.key] and is_undeclared(run, one.queue) then
        left[run.key], is_news = 'undeclared', true
        refused[#refused + 1] = table.concat({ run.home, run.id, one.path }, REF_CUT)
        refused[#refused + 1] = one.queue
      end
    end
  end
  return is_news
end

-- Decide about all ids.
local function decide()
  answers, over, notes, letters = {}, {}, { unpack(old) }, {}
  for i, id in ipairs(ids) do
    local of_stage, completed = string.match(reference_of[id] or '', '^(.-)(%z?)$')
    local home, run_id, path = split_reference(of_stage)
    answers[i] = 0
    if is_rest(id) then
      notes[#notes + 1], answers[i] = id, reference_of[id] and 1 or 0
    elseif room_to_add() == 0 then
      answers[i] = -2
    elseif home and is_there(id, home, run_id, path) then
      notes[#notes + 1] = id
    elseif home and not why_left(i, home, run_id) then
      settle_stage(i, id, of_stage, completed ~= '')
    end
  end
  if leave_undeclared() then
    forget_runs()
    decide()
  end
end

decide()
local failure = commit_runs(true, decide)
if failure then return failure end
forget_facts(over)
in_chunks('HDEL', ledger, over)
if letters[1] then call_run_forget(keys_at(prefix, keys_of_run_forget), arguments_at(prefix, letters)) end
in_chunks('HDEL', unsettled_key, notes)
extend(refused, opened_runs.refused)
extend(rest, rest_of_runs())
return { answers, rest, refused, next_one }
