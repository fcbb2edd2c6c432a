-- Cancel items: remove their data and all bookkeeping, and notify those that hold or await them.
--
-- Removing the data decides, as in `complete`. An id that is left in a list has no
-- data, so that leasing drops it.
--
-- The session that holds an item is notified by `cancel <token> <id>` on its channel `:push:<session>`, and
-- looks in `ledger` whether the token is of no item any more;
-- sessions that wait for its end by `cancelled <id>`. Later callers find the id in `:cancelled`.
--
-- Needs: prefix, ledger, deadlines
-- Gives: cancel
-- Uses: cancelled_key (RARE_KEYS), begin_writes (begin_writes), note_cancelled (cancelled), remove_items
--   (complete), emit, emitting (emit), OURS, OURS_SIZE (encodings), is_ours (foreign), data_key,
--   read_in_chunks (keys), read_ledger (ledger), append (lists), check_processing (processing), find_waiting
--   (waiting), notify_watchers (watchers)

-- Return the session of ours that holds an item, as its lease key says; nil: no session,
-- or a client of another library.
local function holder_of(id)
  local holder = redis.pcall('GET', prefix .. ':lease:' .. id)
  return type(holder) == 'string' and string.sub(holder, 1, OURS_SIZE) == OURS and holder or nil
end

-- Cancel those of the items that exist; returns whether each did, 1 or 0. `for_ms`: see
-- `note_cancelled`; 0: not at all.
local function cancel(ids, for_ms)
  local records = read_in_chunks('HMGET', ledger, ids)
  local scores = read_in_chunks('ZMSCORE', deadlines, ids)
  redis.call('ZCARD', cancelled_key) -- raises now, before anything is written, if the key has another type
  local answers, ended, leased, others, keys, told, seen = {}, {}, {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    answers[i] = seen[id] and 0 or redis.call('EXISTS', data_key(id))
    if answers[i] == 1 then
      ended[#ended + 1], seen[id] = id, true
      append(keys, prefix .. ':result:' .. id) -- that of an earlier item
      append(keys, data_key(id), prefix .. ':lease:' .. id, prefix .. ':leased_by_session:' .. id)
      local _, token = read_ledger(records[i])
      if scores[i] then
        leased[#leased + 1] = id
        local holder = is_ours(scores[i]) and token and holder_of(id)
        if holder then told[#told + 1] = { holder, string.format('%.0f', token), id } end
      else
        token = nil
        others[#others + 1] = id
      end
      if emitting then emit('cancelled', id, { token = token }) end
    end
  end
  if #ended == 0 then return answers end
  if #leased > 0 then check_processing() end
  local places = find_waiting(others)
  begin_writes() -- it frees memory
  if for_ms > 0 then note_cancelled(ended, for_ms) end
  remove_items(ended, leased, others, places, keys)
  for _, one in ipairs(told) do
    redis.pcall('PUBLISH', prefix .. ':push:' .. one[1], 'cancel ' .. one[2] .. ' ' .. one[3])
  end
  notify_watchers(ended, 'cancelled ')
  return answers
end
