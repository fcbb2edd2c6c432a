-- Completing: the data of items is removed, and all that is written of them.
--
-- The rows come after `entries`: id, token, fenced, as `complete_many` is given them.
--
-- Needs: entries, prefix, queue, scheduled, ledger, deadlines
-- Gives: complete

local ids = {}
for at = entries + 1, #ARGV, 3 do
  ids[#ids + 1] = ARGV[at]
end
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

-- For an item that is completed although it waits again (its slow worker came first). Near an end of
-- the list it is removed; deeper, its id stays behind without data and is dropped when it is met.
local function leave_waiting(id)
  if redis.call('ZREM', scheduled, id) == 1 then
    in_chunks('UNLINK', nil, lease_keys_of({ id })) -- what guarded it
    return
  end
  if redis.call('LPOS', queue, id, 'MAXLEN', 256) then
    redis.call('LREM', queue, 1, id)
  elseif redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256) then
    redis.call('LREM', queue, -1, id)
  end
end

-- Remove the data of those that count; returns an answer per item. As a rule all are there, and each
-- id comes once: two commands will do.
local function remove()
  local answers, keys, at_key, met = {}, {}, {}, {}
  local distinct = true
  for i, id in ipairs(ids) do
    local at = entries + 3 * (i - 1)
    local token, fenced = tonumber(ARGV[at + 2]), string.byte(ARGV[at + 3]) == 49
    -- The rest of the record does not matter, and reading it costs a µs.
    local first, last = string.match(records[i] or '', '^(%d+) (%d+)')
    first, last = tonumber(first), tonumber(last)
    local ours = first and token >= first and token <= last
    local current = fenced and is_ours(scores[i]) and token == last and not foreign_lease_left(id)
    if ours and (current or not fenced) then
      keys[#keys + 1] = data_key(id)
      at_key[#keys] = i
      distinct, met[id] = distinct and not met[id], true
    else
      answers[i] = -redis.call('EXISTS', data_key(id))
    end
  end
  local all_there = distinct and #keys > 0 and redis.call('EXISTS', unpack(keys)) == #keys
  if all_there then
    redis.call('UNLINK', unpack(keys))
  end
  for n, i in ipairs(at_key) do
    answers[i] = all_there and 1 or redis.call('UNLINK', keys[n])
  end
  return answers
end

-- The result of whoever completed an item, in the place of an older one.
local function keep_result(id, wish)
  local _, to, keep_ms = string.find(wish, '^[01]:(%d+):')
  redis.call('SET', prefix .. ':result:' .. id, string.sub(wish, to + 1), 'PX', keep_ms)
end

-- Returns an answer per row.
local function complete()
  local answers = remove()
  local leased, done, settled = {}, {}, {}
  for i, id in ipairs(ids) do
    local wish = ARGV[entries + 3 * i]
    if #wish > 1 and answers[i] == 1 then
      keep_result(id, wish)
    end
    -- Whoever removed the data, nothing else of the item may stay.
    if (answers[i] == 1 or (answers[i] == 0 and records[i])) and not settled[id] then
      settled[id] = true
      done[#done + 1] = id
      if emitting and answers[i] == 1 then
        emit('completed', id, { token = ARGV[entries + 3 * i - 1] })
      elseif emitting then
        emit('vanished', id, {})
      end
      if scores[i] then
        leased[#leased + 1] = id
      else
        leave_waiting(id)
      end
    end
  end
  leave_leased(leased, cut_oldest(leased))
  in_chunks('HDEL', ledger, done)
  flush()
  return answers
end
