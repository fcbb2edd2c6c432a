-- Write what a step changes in flow runs: all fields of a run at once, then what follows from them.
--
-- First the notes of what is to be cancelled, which mean nothing by themselves. Then the hash of each run,
-- which decides. Then the items are added of stages and children that are `w`, and the end of a run is
-- published. A call that was interrupted is repeated: it finds the state, and does the rest.
--
-- Needs: nothing
-- Gives: commit_runs, write_run, is_final, is_undeclared, rest_of_runs
-- Calls: add_items, cancel_many
-- Uses: call_add_items, keys_of_add_items (add_items), begin_writes (begin_writes), call_cancel_many,
--   keys_of_cancel_many (cancel_many), arguments_at, keys_at (elsewhere), ADDING_END, REF_CUT (encodings),
--   in_chunks (keys), extend (lists), newer_format (newer), push (push), read_clock (read_clock),
--   split_reference (reference), drop_from_run, forget_runs, heal_run, is_marked, is_of_stage, open_run,
--   opened_runs, queue_of_stage, read_fields, run_field, run_number, set_run, stage_definition (run),
--   check_index, index_deleted, index_ended, index_started (run_index), end_stage, is_run_active (run_step)

local function is_final(run)
  local state = run_field(run, 'state')
  return state and state ~= 'active'
end

-- Return a run as the index lists it, see `runs/lib/run_index`.
local function listed_run(run)
  local fields, keep = run.fields, run_number(run, 'keep')
  local at = run_number(run, run.ends and fields.ended and 'ended' or 'created')
  return {
    home = run.home,
    id = run.id,
    flow = fields.flow or '',
    lookup = fields.lookup,
    state = fields.state,
    at = at > 0 and at or read_clock(),
    expires = run.ends and run.idle and read_clock() + keep or nil,
  }
end

-- Read what is written of runs that end, and whether their hashes may be removed.
local function close_run(run)
  local idle = run_number(run, 'active') <= 0
  if run.changes > 0 and idle and is_run_active(run) then
    set_run(run, 'state', (run_field(run, 'error') or '') ~= '' and 'failed' or 'completed')
  end
  if is_final(run) and run.changed.state then set_run(run, 'ended', string.format('%.0f', read_clock())) end
  run.idle = idle
  run.ends = run.ends or (is_final(run) and (run.changed.state or (idle and run.changed.active)))
  if run.ends then
    read_fields(run, { 'result', 'keep', 'flow', 'lookup', 'error', 'ended', 'parent', 'created' })
    run.result_field = 'r:' .. (run.fields.result or '')
    read_fields(run, { run.result_field })
  end
  if run.ends or run.indexes then
    read_fields(run, { 'flow', 'lookup', 'created' })
    check_index(listed_run(run))
  end
end

-- Why no items can be added to a queue, by its name; false: they can.
local known_refusals = {}

-- Read the keys of a queue that is written, to find one of a wrong type before the first write.
local function check_types(there)
  for command, names in pairs({
    LLEN = { 'queue', 'processing' },
    ZCARD = { 'gone', 'deadlines', 'scheduled' },
    HLEN = { 'ledger', 'errors' },
    XLEN = { 'events' },
  }) do
    for _, name in ipairs(names) do
      redis.call(command, there .. ':' .. name)
    end
  end
end

-- Check a queue to which items are added; its types only if it is not `opened_runs.checked`, which was read.
-- Returns an error if it is being deleted.
local function check_queue(there)
  if there ~= opened_runs.checked then
    check_types(there)
    if known_refusals[there] == false then
      redis.call('HLEN', there .. ':options')
      return
    end
    redis.call('HDEL', there .. ':options', '')
  end
  if redis.call('HEXISTS', there .. ':control', 'closed') == 1 then
    return redis.error_reply('QUEUEDELETED the queue ' .. there .. ' is being deleted')
  end
end

-- Return why no items can be added to a queue now, with its name; nil: they can.
local function why_refused(there)
  local reply = redis.pcall('HEXISTS', there .. ':control', 'closed')
  if reply == 1 then
    return 'the queue ' .. there .. ' is being deleted'
  elseif reply == 0 and there ~= opened_runs.checked then
    reply = redis.pcall('HDEL', there .. ':options', '') -- removes nothing; refused to those who only read
  end
  local text = type(reply) == 'table' and reply.err or ''
  if string.find(text, 'NOPERM') or string.find(text, '[Aa]ccess') or string.find(text, 'ermission') then
    return 'the access rules of the client that finished the stage before forbid the queue ' .. there
  end
end

-- Return whether the caller does not declare that runs of this home may add items to a queue. Who can write
-- to the home can write any plan, and the caller may have rights that they have not.
local function is_undeclared(run, there)
  local declared = there ~= run.home and opened_runs.feeds
  return declared
    and not string.find(declared, table.concat({ '', '', run.home, there, '', '' }, REF_CUT), 1, true)
end

-- Return why an item of a run cannot be added; false: it can.
local function refusal_of(run, one)
  local there = one.queue
  if is_undeclared(run, there) then
    local refused = opened_runs.refused
    refused[#refused + 1] = table.concat({ run.home, run.id, one.path }, REF_CUT)
    refused[#refused + 1] = there
    return 'QueueNotDeclared: the worker that finished the stage before does not declare that flow runs of '
      .. run.home
      .. ' may add items to the queue '
      .. there
      .. ': see `feeds` of Worker'
  end
  if known_refusals[there] == nil then
    local why = why_refused(there)
    known_refusals[there] = why and 'it could not be added: ' .. why or false
  end
  return known_refusals[there]
end

-- Fail the stages and children whose queues cannot be used, and what follows: a retry would be refused, too.
local function fail_refused(run)
  local failed
  repeat
    local added, refusals = run.added, {}
    run.added, failed = {}, {}
    for _, one in ipairs(added) do
      refusals[one] = refusal_of(run, one)
      -- Without a path, it is what adds the first stages, or a stage of no name that another
      -- client has written.
      local fails = refusals[one] and (one.path ~= '' or is_undeclared(run, one.queue))
      local list = fails and failed or run.added
      list[#list + 1] = one
    end
    for _, one in ipairs(failed) do
      local state = run_field(run, 's:' .. one.path)
      if state == 'w' or state == 'x' then end_stage(run, one.path, 'f', refusals[one]) end
    end
  until not failed[1]
end

-- Note which items a step adds, as it may be interrupted before it has: see `heal_run`.
local function note_adding(run)
  local added = run.added
  if added[2] then
    local paths = {}
    for i, one in ipairs(added) do
      paths[i] = one.path .. ADDING_END
    end
    set_run(run, 'adding', table.concat(paths))
  elseif added[1] then
    set_run(run, 'adding', added[1].path .. ADDING_END)
  end
  if run_field(run, 'adding') then drop_from_run(run, 'adding') end
end

-- The items of stages that have waited for other runs, as rows of `cancel_many`, by their queues.
local awaited = {}

-- End the stage of another run that waits for a run which ends, and is its `parent`. Its item, which is due
-- when a worker is to look after the stage again, is removed in the end. Returns the other run if it changes.
local function tell_waiting(run)
  local fields = run.fields
  local home, run_id, path, mark = split_reference(fields.parent or '')
  if home ~= run.home then return end
  local waiting = open_run(home, run_id)
  read_fields(
    waiting,
    { 'state', 'active', 'error', 'level', 'trace', 'adding', 'mark', 's:' .. path, 'n:' .. path }
  )
  if not is_marked(waiting, mark) or not stage_definition(waiting, path).flow then return end
  local is_waiting = run_field(waiting, 's:' .. path) == 'w'
  local changes = is_waiting or not waiting.is_healed
  waiting.row = run.row
  heal_run(waiting)
  waiting.led = run.led
  if not is_waiting then
    changes = changes and #waiting.added > 0
  elseif fields.state == 'completed' then
    local value = (fields.result or '') == '' and 'null' or fields[run.result_field]
    local reason = 'the result of the run ' .. run.id .. ' is that of children: add a stage that takes it'
    end_stage(waiting, path, value and 'd' or 'f', value or reason)
  elseif fields.state == 'cancelled' and (fields.error or '') == '' then
    end_stage(waiting, path, 'c')
  else
    end_stage(waiting, path, 'f', fields.error or '')
  end
  local there = queue_of_stage(waiting, path)
  if newer_format(there) then
    run.leaves = there
  elseif not awaited[there] then
    awaited[there] = {}
    check_types(there)
    redis.call('ZCARD', there .. ':cancelled')
    redis.call('HLEN', there .. ':options')
    redis.call('HLEN', there .. ':unsettled')
  end
  if not run.leaves then extend(awaited[there], { waiting.id .. '/' .. path, '0' }) end
  return changes and waiting
end

-- Decide how runs end, and what follows from it in those that wait for them. A run is written before one that
-- waits for it: its own step, which is repeated if it is interrupted, informs that again.
local function close_runs(goes_on)
  local at = 1
  while opened_runs[at] do
    local run = opened_runs[at]
    if goes_on then fail_refused(run) end
    note_adding(run)
    close_run(run)
    if #run.rest > 0 then redis.call('HLEN', run.home .. ':unsettled') end
    local waiting = run.ends and tell_waiting(run)
    for i = 1, waiting and at - 1 or 0 do
      if opened_runs[i] == waiting then -- it is closed again
        table.remove(opened_runs, i)
        opened_runs[#opened_runs + 1], at = waiting, at - 1
        break
      end
    end
    at = at + 1
  end
end

-- Remove the items of stages that have waited for another run.
local function remove_awaited()
  for there, rows in pairs(awaited) do
    call_cancel_many(keys_at(there, keys_of_cancel_many), arguments_at(there, rows))
    in_chunks('HDEL', there .. ':unsettled', rows) -- their stages have ended; no item has the id 0
  end
end

-- Return the items to be added, by queue, without those that may have been added and have ended otherwise.
local function sort_added()
  local by_queue, queues = {}, {}
  for _, run in ipairs(opened_runs) do
    for _, one in ipairs(run.added) do
      local has_ended = one.again
        and (
          is_of_stage(run, one.path, redis.call('HGET', one.queue .. ':dead:' .. one.id, 'options'))
          or redis.call('ZSCORE', one.queue .. ':cancelled', one.id)
        )
      if not has_ended then
        if not by_queue[one.queue] then
          queues[#queues + 1], by_queue[one.queue] = one.queue, {}
        end
        local rows = by_queue[one.queue]
        local last = #rows
        rows[last + 1], rows[last + 2], rows[last + 3], rows[last + 4] = one.id, one.data, one.delay, one.how
      end
    end
  end
  return queues, by_queue
end

-- Return what is published of a run: its result, or why it has none, as that of a job.
local function result_text(run)
  local fields = run.fields
  if fields.state == 'completed' then
    if (fields.result or '') == '' then return '{"result":null}' end
    local value = fields[run.result_field]
    return value and '{"result":' .. value .. '}' or cjson.encode({ stage = fields.result })
  end
  local is_failed = fields.state == 'failed'
  return cjson.encode({
    error = {
      type = is_failed and 'FlowFailed' or 'FlowCancelled',
      message = is_failed and fields.error or '',
    },
  })
end

-- Publish the outcome of a run, and have it expire. Repeating it changes nothing.
local function publish_end(run)
  local watchers_key = run.home .. ':watchers'
  local waiters = redis.pcall('HGET', watchers_key, run.id)
  if type(waiters) == 'string' and run_number(run, 'keep') == 0 then
    run.fields.keep = '60000' -- those who wait are still to read it
  end
  local keep = run_number(run, 'keep')
  if keep > 0 then redis.call('SET', run.home .. ':result:' .. run.id, result_text(run), 'PX', keep) end
  if run.idle and keep == 0 then
    index_deleted(listed_run(run), run.changed.state)
    redis.call('UNLINK', run.key)
  else
    index_ended(listed_run(run))
    if run.idle then redis.call('PEXPIRE', run.key, keep) end
  end
  if type(waiters) == 'string' then
    push(run.home, waiters, run.id)
    redis.call('HDEL', watchers_key, run.id)
  end
end

-- Return a number, or the numbers of a list, as they are stored.
local function stored_number(value)
  if type(value) == 'number' then return string.format('%.0f', value) end
  local texts = {}
  for i, number in ipairs(value) do
    texts[i] = string.format('%.0f', number)
  end
  return table.concat(texts, ' ')
end

-- Write the fields of a run, all at once.
local function write_run(run)
  if run.stale then
    redis.call('UNLINK', run.key) -- what another caller has stored of a run of this id
  end
  local values, count = {}, 0
  for name, value in pairs(run.changed) do
    if value then
      if type(value) ~= 'string' then value = stored_number(value) end
      values[count + 1], values[count + 2] = name, value
      count = count + 2
    end
  end
  if run.reopens then redis.call('PERSIST', run.key) end
  if count > 0 then redis.call('HSET', run.key, unpack(values)) end
  if run.fields.building and run.fields.state then -- stored in several calls, until now with a time to live
    redis.call('PERSIST', run.key)
    drop_from_run(run, 'building')
  end
end

-- Add items, given as rows. One whose id is taken replaces an item of an earlier run of this id.
-- An item of another kind stays: the stage is noted, and `run_settle` fails it. Returns an error
-- if the queue is being deleted.
local function add_to(there, rows)
  local function add(rows_)
    return call_add_items(keys_at(there, keys_of_add_items), arguments_at(there, rows_))
  end
  -- Deal with an item that was not added; often it is there, as a call was interrupted.
  local function replace(id, ...)
    local reference = cjson.decode(string.sub(select(3, ...), 3)).run
    local home, run_id, path = split_reference(reference)
    local run, text = open_run(home, run_id), redis.call('HGET', there .. ':options', id)
    if is_of_stage(run, path, text) then
      return
    elseif is_of_stage(run, path, text, true) then
      call_cancel_many(keys_at(there, keys_of_cancel_many), arguments_at(there, { id, '0' }))
      redis.call('HDEL', there .. ':unsettled', id)
      add({ id, ... })
    else
      redis.call('HSET', there .. ':unsettled', id, reference)
    end
  end
  local reply = add(rows)
  for i, answer in ipairs(reply.err and {} or reply) do
    if answer == 0 then replace(unpack(rows, 4 * i - 3, 4 * i)) end
  end
  return reply.err and reply
end

-- Note what of a run is to be cancelled, until it is.
local function note_rest(run)
  for _, path in ipairs(run.rest) do
    local reference = table.concat({ run.home, run.id, path }, REF_CUT)
    redis.call('HSET', run.home .. ':unsettled', '!' .. reference, run_field(run, 'mark') or 'cancel')
  end
end

-- Make the first write of a step, after which the server refuses none, and check the queues to which it adds
-- items. Returns an error, and has changed nothing, if one of these is being deleted.
local function begin_step(queues)
  local first = opened_runs[1]
  local starts = first and first.starts and not first.reopens
  if starts then -- it is refused if the server is full; not after the checks, which make another write
    redis.call('ZADD', first.home .. ':runs:active', 'XX', 0, first.id) -- changes nothing
  end
  for _, there in ipairs(queues) do
    local refused = check_queue(there)
    if refused then return refused end
  end
  if not starts then
    begin_writes() -- finished work must be able to leave even then
  end
end

-- Note what would write to a queue in a format that this version does not know: a row of the call, or all of
-- a run if that goes on with an interrupted step. Returns the text of an error, and whether it is news.
local function leave_newer()
  local error_, is_news
  local function look(run, there, row)
    local found, what = newer_format(there), row or run.key
    if found then
      is_news = is_news or not opened_runs.left[what]
      error_, opened_runs.left[what] = found, found
    end
  end
  for _, run in ipairs(opened_runs) do
    if run.leaves then look(run, run.leaves, run.row) end
    for _, one in ipairs(run.added) do
      look(run, one.queue, one.row)
    end
  end
  return error_, is_news
end

-- Write all that has changed. Returns an error, and has changed nothing, if a queue is being deleted, or too
-- new. `goes_on`: instead, the stages fail whose queues are being deleted or forbidden. `decide`: decide
-- again, without what is `left` as it leads to a queue that is too new.
local function commit_runs(goes_on, decide)
  close_runs(goes_on)
  local newer, is_news = leave_newer()
  if newer and is_news and decide then
    awaited = {}
    forget_runs()
    decide()
    return commit_runs(goes_on, decide)
  elseif newer then
    return redis.error_reply(newer)
  end
  local queues, by_queue = sort_added()
  local refused = begin_step(queues)
  if refused then return refused end
  for _, run in ipairs(opened_runs) do
    if run.prepare then
      run.prepare() -- what is removed before the hash is written
    end
    note_rest(run)
  end
  for _, run in ipairs(opened_runs) do
    if run.starts then
      redis.call('UNLINK', run.home .. ':result:' .. run.id) -- of an earlier run
    end
    if run.indexes then
      index_started(listed_run(run)) -- first, so that no run exists that is not listed
    end
    write_run(run)
  end
  for _, there in ipairs(queues) do
    for from = 1, #by_queue[there], 1000 do
      local rows = by_queue[there]
      if #rows > 1000 then rows = { unpack(rows, from, math.min(from + 999, #rows)) } end
      refused = add_to(there, rows)
      if refused then return refused end
    end
  end
  for _, run in ipairs(opened_runs) do
    if run.dropped[1] then in_chunks('HDEL', run.key, run.dropped) end
    if run.ends then publish_end(run) end
  end
  remove_awaited()
end

-- Return the references of stages whose rest is to be cancelled: the children of a path that ends in `/`, or
-- else the stages before a join. They are noted until this is done.
local function rest_of_runs()
  local rest = {}
  for _, run in ipairs(opened_runs) do
    for _, path in ipairs(run.rest) do
      rest[#rest + 1] = table.concat({ run.home, run.id, path }, REF_CUT)
    end
  end
  return rest
end
