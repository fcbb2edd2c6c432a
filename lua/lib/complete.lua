-- Complete items: remove their data and all bookkeeping.
--
-- The rows come after `entries`, as in `complete_many`: id, token, fenced.
--
-- Needs: entries, prefix, queue, scheduled, ledger, deadlines
-- Gives: complete

local ids = {}
for row = entries + 1, #ARGV, 3 do
  ids[#ids + 1] = ARGV[row]
end
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

-- Remove an item that is completed while it waits again, because its slow worker has finished first. Deep in the
-- list its id stays behind without data, and is dropped when it is found.
local function leave_waiting(id)
  if redis.call('ZREM', scheduled, id) == 1 then
    in_chunks('UNLINK', nil, lease_keys_of({ id })) -- the keys of a delayed item
    return
  end
  if redis.call('LPOS', queue, id, 'MAXLEN', 256) then
    redis.call('LREM', queue, 1, id)
  elseif redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256) then
    redis.call('LREM', queue, -1, id)
  end
end

-- Remove the data of the items whose token is accepted; returns an answer per item. Usually all of them exist and
-- each id comes once, so two commands are enough.
local function remove()
  local answers, keys, at_key, seen = {}, {}, {}, {}
  local distinct = true
  for i, id in ipairs(ids) do
    local row = entries + 3 * (i - 1)
    local token, fenced = tonumber(ARGV[row + 2]), string.byte(ARGV[row + 3]) == 49
    -- Reading the rest of the record would cost a µs.
    local first, last = string.match(records[i] or '', '^(%d+) (%d+)')
    first, last = tonumber(first), tonumber(last)
    local ours = first and token >= first and token <= last
    local current = fenced and is_ours(scores[i]) and token == last and not foreign_lease_left(id)
    if ours and (current or not fenced) then
      keys[#keys + 1] = data_key(id)
      at_key[#keys] = i
      distinct, seen[id] = distinct and not seen[id], true
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

-- Store the result of a completed item, replacing an older one.
local function store_result(id, options)
  local _, to, keep_ms = string.find(options, '^[01]:(%d+):')
  redis.call('SET', prefix .. ':result:' .. id, string.sub(options, to + 1), 'PX', keep_ms)
end

-- Complete the items of all rows; returns an answer per row.
local function complete()
  local answers = remove()
  local leased, finished, handled = {}, {}, {}
  for i, id in ipairs(ids) do
    local options = ARGV[entries + 3 * i]
    if #options > 1 and answers[i] == 1 then
      store_result(id, options)
    end
    -- Remove all bookkeeping of the item, no matter which client deleted its data.
    if (answers[i] == 1 or (answers[i] == 0 and records[i])) and not handled[id] then
      handled[id] = true
      finished[#finished + 1] = id
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
  in_chunks('HDEL', ledger, finished)
  flush()
  return answers
end
