-- Keep the progress of items, as their current holders report it: the last report replaces the one before.
--
-- It is kept until the item ends, also when it is leased again. Sessions that wait for the end of the item
-- are sent `progress <size of the id> <id><progress>` on their channels `:push:<session>`.
--
-- Keys: gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, progress (JSON, at most 1,000 bytes), …
-- Reply: a list with an entry per item: 1 kept, 0 rejected (completed, returned, or leased to another).
-- Cost: O(log n) per item.
-- Limits: at most 1,000 items a call.
-- Uses: progress_key (RARE_KEYS), is_current (current), emit, emitting, flush (emit), in_chunks (keys),
--   values_from (lists), push_to_watchers (watchers)

local ids = values_from(ARGV, entries + 1, 3)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
redis.call('HLEN', progress_key) -- raises now, before anything is written, if the key has another type

local answers, kept, messages = {}, {}, {}
for i, id in ipairs(ids) do
  local row = entries + 3 * (i - 1)
  local token, text = ARGV[row + 2], ARGV[row + 3]
  answers[i] = 0
  if #text <= 1000 and is_current(id, tonumber(token), scores[i], records[i]) then
    answers[i] = 1
    kept[#kept + 1], kept[#kept + 2] = id, text
    messages[id] = 'progress ' .. #id .. ' ' .. id .. text
    if emitting then emit('progress', id, { token = token, details = { progress = text } }) end
  end
end
in_chunks('HSET', progress_key, kept)
flush()
push_to_watchers(ids, messages)
return answers
