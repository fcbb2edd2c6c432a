-- Add what is known of items to a reply, as eleven values each.
--
-- Needs: ledger, options
-- Gives: holders_of, add_views
-- Uses: progress_key (RARE_KEYS), LOST, LOST_SIZE (encodings), any_facts, any_options, errors_of (facts),
--   data_key, lease_keys_of, place_in, read_in_chunks (keys), read_ledger (ledger), append (lists)

-- Return the session in the lease keys of each item; false: there are none.
local function holders_of(ids)
  local holders = {}
  if #ids > 0 then
    local values = redis.call('MGET', unpack(lease_keys_of(ids)))
    for i = 1, #ids do
      holders[i] = values[2 * i - 1] or values[2 * i]
      if place_in(holders[i]) or string.sub(holders[i] or '', 1, LOST_SIZE) == LOST then
        holders[i] = false -- it waits in a lane, or a deep clean looks for it
      end
    end
  end
  return holders
end

-- `times`: when each falls due or its lease expires, if it does. `room`: the maximum of data in
-- bytes; returns the rest of it. `states`: if given, the state of an item comes before its values,
-- and ids without data are left out.
local function add_views(reply, ids, times, room, holders, states)
  local records = #ids > 0 and redis.call('HMGET', ledger, unpack(ids))
  local last_errors = errors_of(ids)
  local texts = any_options() and read_in_chunks('HMGET', options, ids) or {}
  local reports = any_facts and read_in_chunks('HMGET', progress_key, ids) or {}
  for i, id in ipairs(ids) do
    local key, data = data_key(id), false
    local size = redis.pcall('STRLEN', key)
    if type(size) == 'table' or (size == 0 and redis.call('EXISTS', key) == 0) then
      size = -1
    elseif size <= room then
      data = redis.call('GET', key)
      room = room - size
    end
    if states and size >= 0 then append(reply, states[i]) end
    if size >= 0 or not states then
      local _, token, attempt, leased_at = read_ledger(records[i])
      append(reply, id, size, data, times[i] or -1, holders[i], token or 0, attempt or 0, leased_at or 0)
      append(reply, last_errors[i] or false, texts[i] or false, reports[i] or false)
    end
  end
  return room
end
