-- Leased items whose work failed: back to be tried again, now or later, or away as dead letters.
--
-- The data of a dead letter moves away from the keys of the family, so that no client brings it back.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   entries  rest     id, token, delay in ms (0: to the end of the queue at once, -1: dead letter), error (kept with a dead letter; of others its last 1,000 bytes are told), …
-- Reply: a list, an entry per item: 1 done, 0 refused (completed, returned, or leased to another).
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised. The data of a dead letter is copied.
-- Limits: at most 1,000 items a call, and, but for a single item, 1 MiB of errors and of data that dies.
-- Needs: check

local ids = {}
for at = entries + 1, #ARGV, 4 do
  ids[#ids + 1] = ARGV[at]
end
redis.call('ZCARD', dead)
local records = redis.call('HMGET', ledger, unpack(ids))
local scores = redis.call('ZMSCORE', deadlines, unpack(ids))

local answers, leaving, to_end, delayed, dying, met = {}, {}, {}, {}, {}, {}
local fields = {}
for i, id in ipairs(ids) do
  local at = entries + 4 * (i - 1)
  local token, delay = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  answers[i] = 0
  if not met[id] and is_current(id, token, scores[i], records[i]) then
    answers[i], met[id] = 1, true
    leaving[#leaving + 1] = id
    local _, _, attempt = read_ledger(records[i])
    local text = ARGV[at + 4]
    fields[#leaving] = { token = token, attempt = attempt, error = string.sub(text, -1000) }
    if delay > 0 then
      delayed[#delayed + 1], fields[#leaving].due = { id, delay }, now + delay
    elseif delay == 0 then
      to_end[#to_end + 1] = id
    else
      fields[#leaving].size = redis.call('STRLEN', data_key(id)) -- raises now, before anything is written, if it is of another type
      dying[#dying + 1] = { id, token, attempt, text }
    end
  end
end

begin_writes() -- an item that failed must get out of the way

leave_leased(leaving)
enter_waiting(to_end, false)
enter_scheduled(delayed)
for _, letter in ipairs(dying) do
  local id, token, attempt, text = unpack(letter)
  local key = dead_key(id)
  redis.call('UNLINK', key) -- an id that dies again takes the place of its older letter
  redis.call(
    'HSET',
    key,
    'data',
    redis.call('GET', data_key(id)),
    'error',
    text,
    'attempt',
    attempt,
    'token',
    string.format('%.0f', token)
  )
  redis.call('ZADD', dead, now, id)
  redis.call('UNLINK', data_key(id))
  redis.call('HDEL', ledger, id)
end
for i, id in ipairs(emitting and leaving or {}) do
  if fields[i].size then
    emit('died', id, fields[i])
  else
    emit('failed', id, fields[i])
  end
end
flush()
return answers
