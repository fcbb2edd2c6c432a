-- Read flow runs, and collect what a step changes in them.
--
-- A flow run is one hash: its plan, the state and the result of each stage, and what its joins
-- have counted. A script reads what it needs, decides by `runs/lib/run_step`, and writes all
-- changes of a run at once by `runs/lib/run_commit`. JSON values are stored as they came; only
-- definitions and lists of names are decoded.
--
-- Needs: prefix
-- Gives: opened_runs, open_run, forget_runs, why_left, read_fields, run_field, run_number, set_run,
--   drop_from_run, stage_definition, queue_of_stage, counts_of, set_counts, has_more, parent_of, add_active,
--   begin_of, is_marked, is_meant, is_of_stage, add_trace, add_stage_item, add_driver, heal_run
-- Uses: REF_CUT, TOKEN_LIMIT (encodings), read_in_chunks (keys), newer_format (newer), parse_time
--   (parse_time), read_clock (read_clock)

-- The runs that this script has read, in order, and by their keys.
--
-- Fields of `opened_runs`:
--   added    number  how many items are added, of all runs (run)
--   checked  text    the queue whose keys were read before the first write (run_finish, run_report,
--       run_settle, run_start)
--   feeds    text    the argument of `run_finish` and `run_settle`; nil: all queues (run_finish, run_settle)
--   left     table   which rows of the call, or runs by their keys, lead to a queue that is too new: the text
--       of the error (run)
--   refused  list    references of stages that are not added for it, each followed by its queue (run)
--   time     text    when stages end in this script, in ms (run_step)
local opened_runs = { added = 0, refused = {}, left = {} }

-- Return a flow run, which is read as far as it is needed.
--
-- Fields of `run`, or `it`:
--   home          text      the queue whose key it is (run)
--   id            text      its id (run)
--   key           text      the key of its hash (run)
--   fields        table     what was read and set of the hash; false: it has none (run, run_finish)
--   changed       table     what is to be written of it; false: nothing (run, run_finish)
--   changes       number    how many fields of the hash are to be written (run)
--   dropped       list      fields of the hash that are removed after all writes (run)
--   definitions   table     decoded definitions of stages and children, by their paths (run)
--   added         list      the items that the step adds (run, run_commit)
--   rest          list      paths whose rest is to be cancelled, see `rest_of_runs` (run)
--   joins         flag      the stage in hand follows joined parts; its item is leased next (run_step)
--   led           text      the traces of what led to the stage in hand; nil: unknown (run_finish, run_step)
--   rows          number    how many rows of the call are of it (run, run_finish)
--   row           number    the row of the call that is in hand (run_finish, run_settle)
--   names         list      the fields of the hash that these rows need; false: none (run, run_finish)
--   is_in         flag      the call takes rows of it, and counts it as one that changes (run, run_finish)
--   is_healed     flag      what an interrupted step may not have added is added again (run)
--   stale         flag      the hash is what another caller has stored of this id, and is removed (run_start)
--   starts        flag      it starts: a result of this id is that of an earlier run (run_reopen, run_start)
--   reopens       flag      it starts again, and its hash no longer expires (run_reopen)
--   indexes       flag      it is entered into the index (run_reopen, run_start)
--   prepare       function  what is done before anything is written (run_reopen)
--   idle          flag      no stage of it is active (run, run_commit)
--   ends          flag      its end is published (run, run_cancel, run_commit, run_finish)
--   leaves        text      the queue of a stage that waits for its end, if it is too new (run_commit)
--   result_field  text      the field of the hash with its result, once it ends (run_commit)
local function open_run(home, id)
  local key = home .. ':run:' .. id
  local run = opened_runs[key]
  if not run then
    -- All in one constructor: a table that grows costs as much as the rest.
    -- stylua: ignore
    run = { home = home, id = id, key = key, fields = {}, changed = {}, changes = 0, added = {}, dropped = {},
      rest = {}, definitions = {}, rows = 0,
      names = false, is_in = false, is_healed = false, idle = false, ends = false }
    opened_runs[key], opened_runs[#opened_runs + 1] = run, run
  end
  return run
end

-- Forget the runs, none of which was written, to decide again.
local function forget_runs()
  for i = #opened_runs, 1, -1 do
    opened_runs[opened_runs[i].key], opened_runs[i] = nil, nil
  end
  opened_runs.added, opened_runs.refused = 0, {}
end

-- Return why a row of the call, of a run that is not opened yet, is left to newer programs; nil: it is not.
local function why_left(i, home, run_id)
  return newer_format(home) or opened_runs.left[i] or opened_runs.left[home .. ':run:' .. run_id]
end

-- Read those of these fields that were not read.
local function read_fields(run, names)
  local unread, fields, count = {}, run.fields, 0
  for i = 1, #names do
    local name = names[i]
    if fields[name] == nil then
      count = count + 1
      unread[count], fields[name] = name, false
    end
  end
  if count > 0 then
    local values = read_in_chunks('HMGET', run.key, unread)
    for i = 1, count do
      fields[unread[i]] = values[i]
    end
  end
end

-- Return a field, as it is or will be; false: there is none.
local function run_field(run, name)
  local fields = run.fields
  local value = fields[name]
  if value == nil then
    value = redis.call('HGET', run.key, name)
    fields[name] = value
  end
  return value
end

-- Return the whole number in a field; 0 if there is none, or another client has overwritten it.
local function run_number(run, name)
  local found = run_field(run, name)
  if not found or type(found) == 'number' then return found or 0 end
  local number = tonumber(found) or 0
  return math.abs(number) < TOKEN_LIMIT and math.floor(number) or 0
end

local function set_run(run, name, value)
  if not run.changed[name] then run.changes = run.changes + 1 end
  run.fields[name], run.changed[name] = value, value
end

-- Remove a field, after all other writes.
local function drop_from_run(run, name) run.dropped[#run.dropped + 1] = name end

-- The types of the facts of a definition; a scripted name has no other.
-- stylua: ignore
local fact_types = { queue = 'string', data = 'string', level = 'number', group = 'string', delay = 'number',
  flow = 'string',
  expires_in = 'number', of = 'number', join = 'string', children = 'number', policy = 'string' }

-- Return the definition in a text. What another client has written there and cannot be read is left out.
local function read_definition(text)
  local is_json, found = pcall(cjson.decode, text)
  found = is_json and type(found) == 'table' and found or {}
  for name, value in pairs(found) do
    local kind = fact_types[name]
    local is_right = type(value) == kind and (kind == 'string' or math.abs(value) < TOKEN_LIMIT)
    if kind and not is_right then found[name] = nil end
  end
  if found['then'] then
    local after = {}
    for _, name in ipairs(type(found['then']) == 'table' and found['then'] or {}) do
      after[#after + 1] = type(name) == 'string' and name or nil
    end
    found['then'] = after[1] and after or nil
  end
  return found
end

-- The definitions that this script has read, by their texts.
local read_before = {}

-- Return the definition of a stage or of a child: a table, empty if there is none.
local function stage_definition(run, path)
  local found = run.definitions[path]
  if not found then
    local is_child = string.find(path, '/', 1, true)
    local text = run_field(run, (is_child and 'k:' or 'n:') .. path) or '{}'
    found = read_before[text] or read_definition(text) -- runs of one flow share many
    run.definitions[path], read_before[text] = found, found
  end
  return found
end

-- Return the queue of a stage or a child, or of the item whose holder adds the children of a stage without
-- item, or the first stages.
local function queue_of_stage(run, path)
  return path ~= '' and (stage_definition(run, path).queue or stage_definition(run, path .. '/0').queue)
    or run.home
end

-- Return the numbers in a field. Who changes them calls `set_counts`.
local function counts_of(run, name)
  local found = run_field(run, name)
  if type(found) == 'table' then return found end
  local counts = {}
  for number in string.gmatch(found or '', '%d+') do
    counts[#counts + 1] = math.min(tonumber(number), TOKEN_LIMIT)
  end
  local least = found and (string.sub(name, 1, 2) == 'i:' and 4 or 5) or 0
  for i = #counts + 1, least do
    counts[i] = 0 -- another client has overwritten them
  end
  return counts
end

local function set_counts(run, name, counts)
  set_run(run, name, counts) -- `write_run` makes them a text
end

-- Return whether the holder of the item of a stage is to add further children: not of a chain, each of whose
-- parts is entered when the one before it is done.
local function has_more(run, path)
  local counts = counts_of(run, 'j:' .. path)
  return counts[1] and counts[2] < counts[1] and counts[6] ~= 2
end

-- Return the path of the stage whose child this is; nil: it is no child.
local function parent_of(path) return string.match(path, '^(.*)/%d+$') end

-- Count the stages and children that have not ended.
local function add_active(run, number)
  -- `write_run` makes it a text.
  set_run(run, 'active', run_number(run, 'active') + number)
end

-- Return a reference as the items of a run carry it: the run's mark distinguishes them
-- from those of an earlier run of its id. And return its parts.
local function reference_of_stage(run, path)
  local mark = run_field(run, 'mark')
  local parts = { run.home, run.id, path, mark and mark ~= '' and mark or nil }
  return table.concat(parts, REF_CUT), parts
end

-- Return whether a run is the one that a caller means by a reference, which may leave out the mark; false as
-- well if there is no run.
local function is_marked(run, mark)
  return run_field(run, 'state') and (mark == '' or mark == (run_field(run, 'mark') or ''))
end

-- Return whether a run is the one that a reference in a key of the queue means. Who can write to the queue
-- can write any. So it has the mark, which only those know who can read a queue of the run; a run of another
-- home has the stage on this queue. The definition of a child that is done may be gone.
local function is_meant(run, path, mark)
  return run_field(run, 'state')
    and mark == (run_field(run, 'mark') or '')
    and (run.home == prefix or queue_of_stage(run, path) == prefix or run_field(run, 's:' .. path) == 'd')
end

-- Return whether options as a text are those of an item of this stage; `of_any`: or of this
-- stage of an earlier run of its id.
local function is_of_stage(run, path, text, of_any)
  local is_json, found = pcall(cjson.decode, text or '')
  local carried = is_json and type(found) == 'table' and tostring(found.run) or ''
  local start = table.concat({ run.home, run.id, path }, REF_CUT)
  return carried == reference_of_stage(run, path)
    or (of_any and (carried == start or string.sub(carried, 1, #start + 1) == start .. REF_CUT))
end

-- Return when a stage may begin, given its `at`: ms after the start of the run; or where the run has a time,
-- an attribute (`@name`), the result of a stage (`stage`) or a member of it (`stage.name`). nil: that is null
-- or missing, so the stage begins at once; false: it is no time, or in more text than is read (64 KiB).
local function begin_of(run, at)
  if type(at) == 'number' then return run_number(run, 'created') + at end
  at = tostring(at)
  local attribute = string.match(at, '^@(.*)$')
  local stage, member = string.match(at, '^([^.]*)%.?(.*)$')
  local text = run_field(run, attribute and 'a:' .. attribute or 'r:' .. stage)
  if not text then return nil end
  local is_json, value = pcall(cjson.decode, #text <= 65536 and text or '')
  if is_json and not attribute and member ~= '' then value = type(value) == 'table' and value[member] end
  if is_json and (value == nil or value == cjson.null) then return nil end
  return is_json and type(value) == 'string' and parse_time(value) or false
end

-- Return when the item of a stage is due, in ms since 1970; nil: at once. `t:<stage>` has it until the stage
-- ends, so that a step that continues an interrupted one (`again`) does not begin the time again.
local function due_of(run, path, found, again)
  if not (found.delay or found.at or found.signal) or parent_of(path) then return nil end
  local noted = again and run_number(run, 't:' .. path) or 0
  if noted > 0 then return noted end
  if found.signal and not found.delay then return read_clock() + 3153600000000 end -- no deadline: 100 years
  local due = found.at and begin_of(run, found.at) or read_clock() + (found.delay or 0)
  set_run(run, 't:' .. path, string.format('%.0f', due))
  return due
end

-- Note in a field that traces led to a stage, and return the last that did, up
-- to a number. Each has 55 bytes.
local function add_trace(run, name, trace, most)
  local found = run_field(run, name)
  if trace then
    found = string.sub(found and found .. ',' .. trace or trace, 1 - 56 * most)
    set_run(run, name, found)
  end
  return found or nil
end

-- Have an item of a stage or a child added. `run.led` is the traces of what led to it, if these are known;
-- else it is that of who started the run. `again`: it may have been added, and may have ended otherwise. The
-- field `adding` has the paths, each followed by NUL, until all are added: see `heal_run`.
local function add_stage_item(run, path, found, again)
  local trace, level, due = run.led or run_field(run, 'trace'), nil, due_of(run, path, found, again)
  if not found.foreign then -- clients of other libraries see no level and no group
    level = (found.level or 0) + run_number(run, 'level')
    level = level ~= 0 and math.max(-9, math.min(9, level)) or nil
  end
  local group = not found.foreign and found.group or nil
  trace = trace and trace ~= '' and trace or nil
  local reference, parts = reference_of_stage(run, path)
  local carried
  if level or group or trace or found.expires_in then
    carried = cjson.encode({
      run = reference,
      level = level,
      group = group,
      trace = trace,
      expires_in = found.expires_in,
    })
  elseif string.find(reference, '[\1-\31"\\]') then
    carried = cjson.encode({ run = reference })
  else -- as of most stages: `read_options` reads this without cjson
    carried = '{"run":"' .. table.concat(parts, '\\u0000') .. '"}'
  end
  opened_runs.added = opened_runs.added + 1
  run.added[#run.added + 1] = {
    path = path,
    queue = found.queue or run.home,
    id = run.id .. '/' .. path,
    data = found.data or '',
    delay = due and string.format('@%.0f', due)
      or (found.delay and string.format('%.0f', found.delay))
      or ((run.joins or found.of) and '-1' or '0'),
    how = '0:' .. carried,
    again = again,
    row = run.row,
  }
end

-- Add an item whose holder adds the other children of a stage that has no item of its
-- own, or the other first stages.
local function add_driver(run, name, again)
  local found, there = stage_definition(run, name), queue_of_stage(run, name)
  add_stage_item(run, name, { queue = there, data = found.data, level = found.level }, again)
end

-- Have the items added again that an interrupted step may not have added.
local function heal_run(run)
  if run.is_healed then return end
  run.is_healed = true
  for path in string.gmatch(run_field(run, 'adding') or '', '(%Z*)%z') do
    local state, counts = run_field(run, 's:' .. path), counts_of(run, 'j:' .. path)
    if state == 'w' then
      add_stage_item(run, path, stage_definition(run, path), true)
    elseif state == 'x' and counts[2] < counts[1] then
      add_driver(run, path, true)
    end
  end
end
