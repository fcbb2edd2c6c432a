-- Keep chunks that the runs of items emit, if they come from the current holders: see `items/lib/chunks`.
--
-- Those of a log are accepted from all holders whose outcome would be, and while callers find that the item
-- was cancelled: its run ends after it.
-- The first chunk of an item removes those of an earlier item with its id. They are kept until the item ends,
-- also when it is leased again, and for `keep_ms` after it. Sessions that wait for the end of the item are
-- sent `emitted <id>` on their channels `:push:<session>` for chunks of a stream.
--
-- Keys: gone, deadlines, scheduled, ledger, watchers, options, errors
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, kind (`emitted`: a stream, which drops the chunks of earlier runs if
--       it has no room for this one's, and then refuses more; `logged`: a log, which drops its
--       oldest chunks), for how many ms the chunks are kept after the end of the item, the maximum of
--       bytes, chunk (empty: none, but those of an earlier item are removed), …
-- Reply: a list with an entry per row: 1 kept, 0 rejected (completed or, of a stream, returned or leased to
--   another), -2 there is no room.
-- Cost: O(log n) per row.
-- Limits: at most 1,000 rows a call and, except for a single row, 1 MiB of chunks. A log drops
--   at most 100 chunks for each that it gets.
-- Uses: cancelled_key (RARE_KEYS), chunks_key, keeps_chunks (chunks), now (clock), accepts_token, is_current
--   (current), CHUNK_BYTES (encodings), options_text, read_options (facts), data_key (keys), read_ledger
--   (ledger), values_from (lists), push_to_watchers (watchers)

local ids = values_from(ARGV, entries + 1, 6)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))
local texts = redis.call('HMGET', options, unpack(ids))

-- Return the token and the bytes in the id of an entry.
local function numbers_of(entry)
  local token, bytes = string.match(entry[1], '^(%d+)-(%d+)$')
  return tonumber(token), tonumber(bytes)
end

-- What is known of each stream of the server: its key and kind, the numbers of its last entry, and how many
-- of its bytes were dropped.
local streams, rows, text_of = {}, {}, {}
for i, id in ipairs(ids) do
  local row = entries + 6 * (i - 1)
  local token, kind = tonumber(ARGV[row + 2]), ARGV[row + 3]
  text_of[id] = texts[i]
  local is_kept, is_last
  if kind ~= 'logged' then
    is_kept = is_current(id, token, scores[i], records[i])
  elseif redis.call('EXISTS', data_key(id)) == 1 then
    is_kept = accepts_token(id, token, false, records[i])
  else
    is_last = (tonumber(redis.call('ZSCORE', cancelled_key, id)) or 0) > now
  end
  if is_last or is_kept then
    local key = chunks_key(kind, id)
    rows[i] = { key = key, token = token, chunk = ARGV[row + 6], is_last = is_last }
    if not streams[key] then
      -- Read before anything is written, as all keys are.
      local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
      local is_begun = is_last or keeps_chunks(texts[i], kind)
      local high, bytes = 0, 0
      if last and is_begun then
        high, bytes = numbers_of(last)
      end
      streams[key] = { kind = kind, is_begun = is_begun, high = high, bytes = bytes, dropped = 0 }
    end
  end
end

-- Remove the chunks of an earlier item, and note that this one has some: from now on they get a time to live
-- when it ends.
local function begin(stream, key, id, keep_ms)
  redis.call('UNLINK', key)
  local found = read_options(text_of[id])
  found[stream.kind] = tonumber(keep_ms)
  text_of[id] = options_text(found)
  redis.call('HSET', options, id, text_of[id])
  stream.is_begun = true
end

-- Return whether there is room for `size` more bytes, after the oldest chunks of a log were dropped, or all
-- those of earlier runs from a stream.
local function make_room(stream, key, size, max_bytes, token)
  local from = '-'
  local function fits() return stream.bytes - stream.dropped + size <= max_bytes end
  local first = redis.call('XRANGE', key, '-', '+', 'COUNT', 1)[1]
  if first then
    local _, bytes = numbers_of(first)
    stream.dropped = bytes - #first[2][6] - CHUNK_BYTES
  end
  if fits() then return true end
  if stream.kind == 'logged' then
    for _ = 1, 100 do
      local its_token, bytes = numbers_of(first) -- one by one: each may have 4 KiB
      stream.dropped, from = bytes, string.format('%.0f-%.0f', its_token, bytes + 1)
      first = not fits() and redis.call('XRANGE', key, from, '+', 'COUNT', 1)[1]
      if not first then break end
    end
  else
    local own = string.format('%.0f-0', token)
    local last = redis.call('XREVRANGE', key, '(' .. own, '-', 'COUNT', 1)[1]
    if not last then return false end
    local _, bytes = numbers_of(last)
    stream.dropped, from = bytes, own
    if not fits() then return false end
  end
  redis.call('XTRIM', key, 'MINID', from)
  return true
end

local answers, told, messages = {}, {}, {}
for i, id in ipairs(ids) do
  local row, one = entries + 6 * (i - 1), rows[i]
  local max_bytes = tonumber(ARGV[row + 5])
  answers[i] = one and 1 or 0
  if one then
    local key, stream, size = one.key, streams[one.key], #one.chunk + CHUNK_BYTES
    if not stream.is_begun then begin(stream, key, id, ARGV[row + 4]) end
    local fits = stream.bytes + size <= max_bytes
      or (size <= max_bytes and make_room(stream, key, size, max_bytes, one.token))
    if #one.chunk > 0 and not fits then
      answers[i] = -2
    elseif #one.chunk > 0 then
      stream.high, stream.bytes = math.max(stream.high, one.token), stream.bytes + size
      local _, _, attempt = read_ledger(records[i] or '0 0 0 0')
      local entry = string.format('%.0f-%.0f', stream.high, stream.bytes)
      redis.call('XADD', key, entry, 'token', one.token, 'attempt', attempt, 'chunk', one.chunk)
      if one.is_last and redis.call('PTTL', key) < 0 then redis.call('PEXPIRE', key, ARGV[row + 4]) end
      if stream.kind == 'emitted' and not messages[id] then
        messages[id], told[#told + 1] = 'emitted ' .. id, id
      end
    end
  end
end
if told[1] then push_to_watchers(told, messages) end
return answers
