-- Return what has become of items and flow runs. Of each that is unfinished, note
-- that a session waits for its end.
--
-- The script that ends such an item publishes `ended <id>` on the channel `:push:<session>`, or
-- `cancelled <id>` or `expired <id>`, with a seal: see `lib/push`. Other clients publish nothing, and a
-- message may be lost, so the session asks again after a while, which also renews the notes.
--
-- Keys: queue, dead, watchers
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   session  text     the session that waits
--   secret   text     24 letters, digits, - and _, with which messages to it are sealed
--   keep_ms  integer  how long the notes of all sessions are kept from now on
--   entries  rest     ids of items, or of flow runs whose home this queue is
-- Reply: a list with two values per item: 1 and its result, 3 and nothing (it was cancelled), 4 and
--   nothing (it has expired), 2 and the error of the dead letter, 0 and its last progress
--   (unfinished), -1 and nothing (neither item nor result nor dead letter), -2 and nothing (not
--   read, nor any after it: ask again).
-- Cost: O(1) per id.
-- Limits: at most 1,000 ids a call. After 1 MiB of results no more are read.
-- Uses: cancelled_key (RARE_KEYS), begin_writes (begin_writes), dead_key (dead_letter), WHOLE_MS (encodings),
--   data_key, in_chunks, read_in_chunks (keys), read_clock (read_clock)

redis.call('LLEN', queue)
redis.call('ZCARD', dead)
local some_cancelled = redis.call('ZCARD', cancelled_key) > 0
local reply, unfinished, ended, bytes = {}, {}, {}, 0
for row = entries + 1, #ARGV do
  local id, code, text = ARGV[row], -2, ''
  if bytes < 1048576 then
    code = 0
    if redis.call('EXISTS', data_key(id)) == 1 then
      unfinished[#unfinished + 1] = id
      text = redis.call('HGET', prefix .. ':progress', id) or ''
    else
      code, text = 1, redis.call('GET', prefix .. ':result:' .. id)
      if not text and some_cancelled then
        local until_ = redis.call('ZSCORE', cancelled_key, id)
        if until_ and tonumber(until_) > read_clock() then
          code, text = tonumber(until_) % WHOLE_MS == 0 and 3 or 4, ''
        end
      end
      if not text and redis.call('HGET', prefix .. ':run:' .. id, 'state') == 'active' then
        code, text = 0, ''
        unfinished[#unfinished + 1] = id
      end
      if not text then
        code, text = 2, redis.call('HGET', dead_key(id), 'error')
      end
      if not text then
        code, text = -1, ''
      end
      bytes = bytes + #text
      if code ~= 0 then ended[#ended + 1] = id end
    end
  end
  reply[#reply + 1], reply[#reply + 2] = code, text
end

-- How many bytes of notes an item has at most, or little more: some 900.
local MOST_NOTED = 65536
local known, notes = read_in_chunks('HMGET', watchers, unfinished), {}
local note = secret .. '@' .. session
for i, id in ipairs(unfinished) do
  local sessions = known[i]
  if not (sessions and string.find(sessions, note, 1, true)) then
    -- Those that were noted first and still wait ask again.
    if sessions and #sessions > MOST_NOTED then
      sessions = string.match(string.sub(sessions, -MOST_NOTED), ' (.*)$')
    end
    notes[#notes + 1], notes[#notes + 2] = id, sessions and sessions .. ' ' .. note or note
  end
end
if #unfinished > 0 then
  begin_writes() -- waiting must be possible if the server has reached its `maxmemory`
  in_chunks('HSET', watchers, notes)
  redis.call('PEXPIRE', watchers, keep_ms)
end
if #ended > 0 and redis.call('HLEN', watchers) > 0 then
  in_chunks('HDEL', watchers, ended) -- those that another client has ended, which removes no notes
end
return reply
