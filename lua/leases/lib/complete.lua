-- Complete items: remove their data and all bookkeeping.
--
-- The rows come after the place `from` in `values`, as in `complete_many`: id, token, fenced. If that is 2,
-- the flow run of the item has recorded its end. Removing the data decides. Before it only results are
-- written; after it a clean or a lease of the id finds what is left, as after a foreign completion.
--
-- Needs: prefix, scheduled, ledger, deadlines
-- Gives: complete, remove_items
-- Uses: begin_writes (begin_writes), accepts_token (current), emit, emitting, flush, publishes (emit),
--   forget_facts (facts), data_key, in_chunks (keys), check_processing, unlist (processing), free_leases,
--   note_options, wake_next (slots), find_waiting, leave_places (waiting), notify_watchers (watchers)

-- Return the answer to each row. Usually all tokens are accepted and all
-- items exist, and one command is enough.
local function answer_rows(values, from, ids, records, scores)
  local answers, keys, seen, count = {}, {}, {}, 0
  for i = 1, #ids do
    local id, row = ids[i], from + 3 * i - 3
    local fenced = string.byte(values[row + 3]) == 49
    if not (records[i] and accepts_token(id, values[row + 2], fenced, records[i], scores[i])) then
      answers[i] = -redis.call('EXISTS', data_key(id))
    elseif seen[id] then
      answers[i] = 0
    else
      count = count + 1
      answers[i], keys[count], seen[id] = 1, data_key(id), true
    end
  end
  if count > 0 and redis.call('EXISTS', unpack(keys)) < count then
    for i, answer in ipairs(answers) do
      answers[i] = answer == 1 and redis.call('EXISTS', data_key(ids[i])) or answer
    end
  end
  return answers
end

-- Remove items with all their bookkeeping: `keys` are those of their data and leases, `leased` the ids under
-- lease, and `others` those that wait or are scheduled, and `places` what `find_waiting` has found of them;
-- `answer_of`, `asked`: see `forget_facts`. Call it after `check_processing`, and notify watchers after it.
local function remove_items(ids, leased, others, places, keys, answer_of, asked)
  note_options(leased)
  in_chunks('UNLINK', nil, keys) -- decides
  forget_facts(ids, answer_of, asked)
  in_chunks('HDEL', ledger, ids)
  if others[1] then
    in_chunks('ZREM', scheduled, others)
    leave_places(places)
  end
  unlist(leased)
  in_chunks('ZREM', deadlines, leased)
  free_leases(leased)
  wake_next()
  flush()
end

-- Return the result in the third value of a row, and how long to keep it: not at all if that is 0 ms.
local function result_of(options_)
  local _, to, keep_ms = string.find(options_, '^[01]:(%d+):')
  return string.sub(options_, to + 1), keep_ms
end

-- Store the result of a completed item, replacing an older one.
local function store_result(id, options_)
  local result, keep_ms = result_of(options_)
  if keep_ms ~= '0' then redis.call('SET', prefix .. ':result:' .. id, result, 'PX', keep_ms) end
end

-- Complete the items of all rows; returns an answer per row.
local function complete(values, from)
  local ids = {}
  for i = 1, (#values - from) / 3 do
    ids[i] = values[from + 3 * i - 2]
  end
  local records = redis.call('HMGET', ledger, unpack(ids))
  local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
  local answers = answer_rows(values, from, ids, records, scores)
  local leased, finished, handled, others, keys, results = {}, {}, {}, {}, {}, {}
  local count, asked = 0, {}
  for i = 1, #ids do
    local id = ids[i]
    if answers[i] == 1 and #values[from + 3 * i] > 1 then results[#results + 1] = i end
    -- Remove all bookkeeping of the item, no matter which client deleted its data.
    if (answers[i] == 1 or (answers[i] == 0 and records[i])) and not handled[id] then
      count = count + 1
      handled[id], finished[count] = answers[i], id
      asked[#asked + 1] = values[from + 3 * i] ~= '2' and id or nil
      keys[3 * count - 2], keys[3 * count - 1] = data_key(id), prefix .. ':lease:' .. id
      keys[3 * count] = prefix .. ':leased_by_session:' .. id
      if scores[i] then
        leased[#leased + 1] = id
      else
        others[#others + 1] = id
      end
      if emitting and answers[i] == 1 then
        local options_ = values[from + 3 * i]
        local result = publishes and #options_ > 1 and result_of(options_) or nil
        emit('completed', id, { token = values[from + 3 * i - 1], result = result }, records[i])
      elseif emitting then
        emit('vanished', id, {})
      end
    end
  end
  if #leased > 0 then check_processing() end
  local places = find_waiting(others)
  if #results > 0 then
    begin_writes() -- a worker must be able to complete even then
  end
  for _, i in ipairs(results) do
    store_result(ids[i], values[from + 3 * i])
  end
  remove_items(finished, leased, others, places, keys, handled, asked)
  notify_watchers(finished)
  return answers
end
