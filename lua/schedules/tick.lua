-- Add the items of schedules that are due, and set when each schedule is due next.
--
-- The caller has read which schedules are due, and has calculated the rows. A row is applied only if the
-- schedule is still as it was read. So any number of processes may tick at once, and each tick is added by
-- exactly one of them.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, schedules, ticks, options, errors, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   max_bytes  integer  the maximum of data to add (the first item is always added)
--   rows       rest     name, definition as read, due time as read, id of the item
--       (empty: add none), next due time, …
-- Reply: a list with an entry per row: 1 its item was added; 2 none was, as the row has no id or the id
--   exists; 0 the schedule is not as it was read, and nothing was done; -2 not checked, nor any after it,
--   because of `max_bytes`.
-- Cost: O(log n) per row. The data is copied.
-- Limits: at most 1,000 rows and `max_bytes` of data a call.
-- Needs: check
-- Uses: find_earlier, forget_earlier (begin_incarnation), now (clock), is_closed (closed), emit, emitting,
--   flush (emit), any_options, write_options (facts), data_key, in_chunks (keys), wake_next (slots),
--   enter_waiting (waiting)

local function data_of_schedule(name) return prefix .. ':schedule:' .. name end

redis.call('ZCARD', ticks)
local definition_of, due_of, undefined = {}, {}, {}

-- Return whether the schedule is as it was read, and due. Rows before may have set its time.
local function is_as_read(name, definition, due)
  if due_of[name] == nil then
    definition_of[name] = redis.call('HGET', schedules, name)
    due_of[name] = tonumber(redis.call('ZSCORE', ticks, name) or '') or false
    if not definition_of[name] then undefined[#undefined + 1] = name end
  end
  return not is_closed and definition_of[name] == definition and due_of[name] == due and due <= now
end

local answers, added, source_of, size_of, next_due, bytes = {}, {}, {}, {}, {}, 0
for row = rows + 1, #ARGV, 5 do
  local name, id, answer = ARGV[row], ARGV[row + 3], 0
  local size = redis.call('STRLEN', data_of_schedule(name))
  local room = #added == 0 or id == '' or bytes + size <= max_bytes
  if not room or answers[#answers] == -2 then
    answer = -2
  elseif is_as_read(name, ARGV[row + 1], tonumber(ARGV[row + 2])) then
    answer = 2
    if id ~= '' and not source_of[id] and redis.call('EXISTS', data_key(id)) == 0 then
      answer = 1
      bytes = bytes + size
      added[#added + 1], source_of[id], size_of[id] = id, data_of_schedule(name), size
    end
    due_of[name] = tonumber(ARGV[row + 4])
    next_due[#next_due + 1], next_due[#next_due + 2] = ARGV[row + 4], name
  end
  answers[#answers + 1] = answer
end

local earlier = find_earlier(added)
if any_options() then write_options(added, {}) end
enter_waiting(added, false)
if earlier then forget_earlier(added, earlier) end
for _, id in ipairs(added) do
  if size_of[id] == 0 then
    redis.call('SET', data_key(id), '')
  else
    redis.call('COPY', source_of[id], data_key(id))
  end
end
in_chunks('ZADD', ticks, next_due)
wake_next()
for _, name in ipairs(undefined) do
  redis.call('UNLINK', data_of_schedule(name))
  redis.call('ZREM', ticks, name)
end
for _, id in ipairs(emitting and added or {}) do
  emit('added', id, { size = size_of[id] })
end
flush()
return answers
