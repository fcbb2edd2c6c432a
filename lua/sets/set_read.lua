-- Return items of a set that are still leased for it.
--
-- With `give_up`, an item that is not is given up: its place is marked, and `set_complete` leaves it out,
-- too. `set_renew` leases again those that only wait, so call it before giving up.
--
-- Keys: deadlines, ledger, options
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   stream     text     the name of the stream
--   reader     text     the reader of the stream
--   set        text     the name of the set
--   start      integer  the first place of the set to check; 0 is its first item
--   count      count    how many places to check
--   max_bytes  integer  stop before this much data (the first item is always returned); -1: return no data
--   peek       flag     1: return id and token of each item that is not given up, and give up none
--   give_up    flag     1: give up items that are not held; 0: stop before the
--       first of them, as it may only wait
-- Reply: 1, or 0 if another reader has taken over; how many places were checked (0: the set ends before; -1:
--   the first is not held, and was not given up); the time in ms; then for each item: id, size, data (false:
--   not asked for), token, attempt, when its lease expires in ms, when it was leased in ms, its options or
--   false; with `peek`: id, token.
-- Cost: O(log n + count); O(start) into the set.
-- Limits: at most 1,000 places a call, and `max_bytes` of data.
-- Uses: begin_writes (begin_writes), now (clock), is_current (current), data_key (keys), read_ledger
--   (ledger), append (lists), is_stream_owner (stream_owner)

local reply = { is_stream_owner() and 1 or 0, 0, now }
local set_key = prefix .. ':set:' .. set
local places = redis.call('LRANGE', set_key, start, start + count - 1)
if #places == 0 or not is_stream_owner() then return reply end
local ids, tokens, kept = {}, {}, {}
for i, place in ipairs(places) do
  local token, id = string.match(place, '^(%d+) (.*)$')
  ids[i], tokens[i], kept[i] = id or '', tonumber(token), id
  if peek and id then
    reply[#reply + 1], reply[#reply + 2] = id, tokens[i]
  end
end
if peek then
  reply[2] = #places
  return reply
end
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
local texts = redis.call('HMGET', options, unpack(ids))

local bytes = 0
for i, id in ipairs(ids) do
  if kept[i] and is_current(id, tokens[i], scores[i], records[i]) then
    local size, data = redis.call('STRLEN', data_key(id)), false
    if max_bytes >= 0 then
      if bytes > 0 and bytes + size > max_bytes then break end
      data, bytes = redis.call('GET', data_key(id)), bytes + size
    end
    local _, _, attempt, leased_at = read_ledger(records[i])
    append(reply, id, size, data, tokens[i], attempt, tonumber(scores[i]), leased_at, texts[i])
  elseif kept[i] and not give_up then
    reply[2] = i == 1 and -1 or i - 1
    break
  elseif kept[i] then
    begin_writes()
    redis.call('LSET', set_key, start + i - 1, '-')
  end
  reply[2] = i
end
return reply
