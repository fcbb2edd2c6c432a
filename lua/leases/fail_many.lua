-- Take failed items from their holders: return each to the queue, schedule it, or make it a dead letter.
--
-- The data of a dead letter leaves the keys that foreign clients know, so that none of them can restore the
-- item.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, delay in ms (0: to the end of the queue now; -1: dead letter), error (kept
--       with a dead letter; for an item that is retried, as in events, its last 1,000 bytes), …
-- Reply: a list with an entry per item: 1 done, 0 rejected (completed, returned, or leased to another), -3
--   its data key is no string, so it cannot become a dead letter.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised. The data of a dead letter is copied.
-- Limits: at most 1,000 items a call and, except for a single item, 1 MiB of errors and data of dead letters.
-- Uses: tags_key (RARE_KEYS), begin_writes (begin_writes), now (clock), is_current (current), enter_dead
--   (dead_letter), emit, emitting, flush (emit), any_options, forget_facts, note_errors, options_of,
--   options_text (facts), data_key (keys), read_ledger (ledger), values_from (lists), enter_scheduled,
--   leave_leased (move), check_processing (processing), note_options, wake_next (slots), enter_waiting
--   (waiting), notify_watchers (watchers)

local ids = values_from(ARGV, entries + 1, 4)
redis.call('ZCARD', dead)
redis.call('ZCARD', tags_key)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, failed, to_end, delayed, dying, seen = {}, {}, {}, {}, {}, {}
local fields, runs, notes, died = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local row = entries + 4 * (i - 1)
  local token, delay = tonumber(ARGV[row + 2]), tonumber(ARGV[row + 3])
  local dies = delay < 0
  answers[i] = 0
  if not seen[id] and is_current(id, token, scores[i], records[i]) then
    local data = dies and redis.pcall('GET', data_key(id))
    if type(data) == 'table' then
      answers[i] = -3
    else
      answers[i], seen[id] = 1, true
      failed[#failed + 1], runs[#runs + 1] = id, records[i]
      local _, _, attempt = read_ledger(records[i])
      local text = ARGV[row + 4]
      local last_part = string.sub(text, -1000)
      fields[#failed] = { token = token, attempt = attempt, error = last_part }
      if dies then
        fields[#failed].size = #data
        dying[#dying + 1], died[#died + 1] = { id, token, attempt, text, data }, id
      elseif text ~= '' then
        notes[#notes + 1], notes[#notes + 2] = id, last_part
      end
      if delay > 0 then
        delayed[#delayed + 1], fields[#failed].due = { id, delay }, now + delay
      elseif delay == 0 then
        to_end[#to_end + 1] = id
      end
    end
  end
end
if #failed == 0 then return answers end
redis.call('LLEN', queue)
redis.call('ZCARD', scheduled)
check_processing()
local carried = {}
for i, found in ipairs(any_options() and options_of(died) or {}) do
  found.expires, found.unstarted = nil, nil -- a worker has begun with the item
  found.emitted = nil -- its stream ends with it: see `items/lib/chunks`
  carried[i] = options_text(found)
end

note_options(failed)
begin_writes() -- a failed item must be able to leave

enter_waiting(to_end, false)
enter_scheduled(delayed)
note_errors(notes)
for i, dead_letter in ipairs(dying) do
  local id, token, attempt, text, data = unpack(dead_letter)
  enter_dead(id, data, text, attempt, token, carried[i])
  redis.call('UNLINK', data_key(id))
  redis.call('HDEL', ledger, id)
  forget_facts({ id })
end
leave_leased(failed)
wake_next()
for i, id in ipairs(emitting and failed or {}) do
  if fields[i].size then
    emit('died', id, fields[i], runs[i])
  else
    emit('failed', id, fields[i], runs[i])
  end
end
flush()
notify_watchers(died)
return answers
