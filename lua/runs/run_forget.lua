-- Drop what a queue holds of ended stages of flow runs: their dead letters, and notes
-- that their items were cancelled.
--
-- Keys: gone, scheduled, dead, options, errors
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     ids of items that do not exist; or `=` and the reference of a stage: only what is of
--       this stage is dropped, and its item, which an interrupted step may have left, is cancelled
-- Reply: a list with an entry per id: 1 its dead letter was dropped, 0 there was
--   none, or it is not of the stage.
-- Cost: O(log n) per id.
-- Limits: at most 1,000 ids a call.
-- Calls: cancel_many, drop_many
-- Uses: cancelled_key, unsettled_key (RARE_KEYS), call_cancel_many, keys_of_cancel_many (cancel_many),
--   dead_key (dead_letter), call_drop_many, keys_of_drop_many (drop_many), arguments_at, keys_at (elsewhere),
--   REF_CUT (encodings), read_options (facts), data_key, in_chunks (keys), split_reference (reference)

local any_dead = redis.call('ZCARD', dead) > 0
local any_notes = redis.call('ZCARD', cancelled_key) + redis.call('HLEN', unsettled_key) > 0
redis.call('HLEN', options)

-- Return whether options as a text are those of a stage.
local function is_of(reference, text)
  local carried = read_options(text).run or ''
  return carried == reference or string.sub(carried, 1, #reference + 1) == reference .. REF_CUT
end

local ids, references, keys = {}, {}, {}
for row = entries + 1, #ARGV do
  local reference = string.match(ARGV[row], '^=(.*%z.*)$')
  local home, run_id, path = split_reference(reference or '')
  local id = home and run_id .. '/' .. path or ARGV[row]
  ids[#ids + 1], references[#ids + 1] = id, home and reference
  keys[#keys + 1], keys[#keys + 2] = dead_key(id), data_key(id)
end
local any_left = redis.call('EXISTS', unpack(keys)) > 0
local dropped, items, answers, places, unlisted = {}, {}, {}, {}, {}
for i, id in ipairs(ids) do
  local reference = references[i]
  local has_letter = any_left and redis.call('EXISTS', dead_key(id)) == 1
  local is_its = has_letter
  if any_left and reference then
    is_its = has_letter and is_of(reference, redis.call('HGET', dead_key(id), 'options'))
    if redis.call('EXISTS', data_key(id)) == 1 and is_of(reference, redis.call('HGET', options, id)) then
      items[#items + 1], items[#items + 2] = id, '0'
    end
  end
  answers[i] = 0
  if is_its then
    dropped[#dropped + 1], places[#places + 1] = id, i
  elseif not has_letter then
    unlisted[#unlisted + 1] = id
  end
end
if items[1] then call_cancel_many(keys_at(prefix, keys_of_cancel_many), arguments_at(prefix, items)) end
if dropped[1] then
  local replies = call_drop_many(keys_at(prefix, keys_of_drop_many), arguments_at(prefix, dropped))
  for i, answer in ipairs(replies) do
    answers[places[i]] = answer
  end
end
if any_dead then in_chunks('ZREM', dead, unlisted) end -- an interrupted call may have left them there
if any_notes or any_left then
  in_chunks('ZREM', cancelled_key, ids)
  in_chunks('HDEL', unsettled_key, ids)
end
return answers
