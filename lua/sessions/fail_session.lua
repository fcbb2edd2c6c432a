-- Fail a worker: return items that its session holds to the front of the queue, at once.
--
-- The first call marks the worker, whose `worker_beat` is refused from then on, and returns the ids of its
-- inbox. Then its items, which `session_leases` finds, are returned in steps, those with the highest tokens
-- first, so that they keep their order. The last step ends its registration, and notes that it was failed.
-- Any number of clients may do this at once, and another one can continue if the first stops in between.
--
-- The attempt counts. No holder of an earlier token can complete the item any more: the first token in its
-- entry of the ledger becomes one that was not given yet.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, idle, options,
--   errors, events, workers, heartbeats
-- Arguments:
--   prefix       text     the queue's name
--   now_ms       integer  the time; empty: the server's time
--   worker       text     the worker: the session that holds the items
--   expired      flag     1: only if its registration no longer holds
--   connections  text     only if its registration names these connections, separated by commas; empty: any
--   ends         flag     1: end its registration
--   entries      rest     ids; those that the session does not hold are left alone
-- Reply: how many ids were returned; -1: there is no such worker; -2: it is alive.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call, and 1,000 ids of its inbox.
-- Uses: drop_alarm (alarm), begin_writes (begin_writes), now (clock), controlled (controlled), emit,
--   emitting, flush (emit), BEING_FAILED (encodings), is_ours (foreign), empty_inbox (inbox), data_key,
--   in_chunks, read_in_chunks (keys), read_ledger (ledger), values_from (lists), leave_leased (move),
--   check_processing (processing), failed_key, name_of, unregister (registry), note_options, wake_next
--   (slots), holders_of (view), enter_waiting (waiting)

local score = tonumber(redis.call('ZSCORE', heartbeats, worker) or '')
local about = redis.call('HGET', workers, worker)
if not score and not about then return -1 end
-- Return the connections that the registration names.
local function connections_of(text)
  local read, facts = pcall(cjson.decode, text or '')
  local names = {}
  for i, one in ipairs(read and type(facts) == 'table' and facts.connections or {}) do
    names[i] = string.format('%.0f', one)
  end
  return table.concat(names, ',')
end
if score ~= BEING_FAILED then
  local alive = expired and not (score and score <= now)
  if alive or (connections ~= '' and connections ~= connections_of(about)) then return -2 end
end

local ids = values_from(ARGV, entries + 1)
local holders = holders_of(ids)
local scores = read_in_chunks('ZMSCORE', deadlines, ids)
local records = read_in_chunks('HMGET', ledger, ids)
local held, new_records, token_of = {}, {}, {}
for i, id in ipairs(ids) do
  if holders[i] == worker and is_ours(scores[i]) and records[i] and not token_of[id] then
    if redis.call('EXISTS', data_key(id)) == 1 then
      local _, last, attempt, leased_at = read_ledger(records[i])
      held[#held + 1], token_of[id] = id, last
      new_records[2 * #held - 1] = id
      new_records[2 * #held] = string.format('%.0f %.0f %.0f %.0f', last + 1, last, attempt, leased_at)
    end
  end
end
redis.call('LLEN', queue)
redis.call('ZCARD', idle)
redis.call('ZCARD', scheduled)
check_processing()

note_options(held)
begin_writes() -- items must return even then
redis.call('ZADD', heartbeats, BEING_FAILED, worker)
for _, member in ipairs(redis.call('ZRANGE', idle, 0, 999)) do
  if string.sub(member, -#worker - 1) == '@' .. worker then redis.call('ZREM', idle, member) end
end
local returned = empty_inbox(prefix .. ':inbox:' .. worker, 1000)
enter_waiting(held, true)
in_chunks('HSET', ledger, new_records)
leave_leased(held)
if controlled then drop_alarm(worker) end
wake_next()
if ends then
  redis.call('SET', failed_key(worker), '1', 'PX', 3600000)
  unregister(worker)
end
if emitting then
  for i = #held, 1, -1 do
    emit('reclaimed', held[i], { holder = worker, token = token_of[held[i]], front = '1' })
  end
  if ends then emit('worker_failed', worker, { details = { worker = name_of(about) } }) end
end
flush()
return returned + #held
