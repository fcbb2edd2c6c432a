-- Remove what is left of a queue that `close_queue` has closed, one step of a scan at a time.
--
-- The mark is removed last, so that a deletion that was interrupted can be made again. `fence` stays: tokens
-- only grow, also if the name is used again. So do processes that wait for items, and workers: they are
-- registered as long as they live.
--
-- Keys: queue, gone, scheduled, heartbeats, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   pattern  text     a glob that matches the keys of this queue
--   cursor   text     "0" in the first call, then the cursor of the last reply; empty: the
--       scan has ended, remove the rest
--   count    count    about how many keys of the database to check
--   names    rest     of a scan: `item`, `dead` and so on, which follow the queue's name in keys of single
--       items; of the rest: the ends of all other keys
-- Reply: the next cursor ("0": all keys were checked, or the queue is deleted), how many items were removed.
-- Cost: O(count).
-- Limits: one SCAN of `count` (at most 1,000) a call; of the rest, `count` ids that
--   other clients have added since it was closed.
-- Uses: control_key (RARE_KEYS), begin_writes (begin_writes), now (clock), is_closed (closed), emit,
--   emitting, flush, publishes (emit), INBOX_OF_OURS, INBOX_OF_OURS_SIZE (encodings), forget_facts (facts),
--   data_key, in_chunks (keys), publish_live (live), notify_watchers (watchers)

if not is_closed then return { '0', 0 } end
redis.call('ZCARD', heartbeats)
local sessions_key = prefix .. ':sessions'
redis.call('ZCARD', sessions_key)
local pool = redis.call('HGET', control_key, 'shared')
if pool then redis.call('ZCARD', pool .. ':queues') end

-- Remove keys, some of which are the data of items; returns how many items there were.
local function remove(keys, ids)
  local removed = {}
  for _, id in ipairs(ids) do
    removed[#removed + 1] = redis.call('EXISTS', data_key(id)) == 1 and id or nil
  end
  in_chunks('UNLINK', nil, keys)
  forget_facts(removed)
  for _, id in ipairs(emitting and removed or {}) do
    emit('discarded', id, { details = { reason = 'deleted' } })
  end
  return removed
end

begin_writes() -- it frees memory
if cursor ~= '' then
  local families = {}
  for i = names + 1, #ARGV do
    families[ARGV[i]] = true
  end
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count)
  local keys, ids = {}, {}
  for _, key in ipairs(page[2]) do
    local rest = string.sub(key, #prefix + 2)
    local family, one = string.match(rest, '^([^:]+):(.*)$')
    if families[family] or string.sub(rest, 1, INBOX_OF_OURS_SIZE) == INBOX_OF_OURS then
      keys[#keys + 1] = key
      ids[#ids + 1] = family == 'item' and one or nil
    end
  end
  local removed = remove(keys, ids)
  flush()
  notify_watchers(removed, 'cancelled ')
  return { page[1], #removed }
end

local ids, keys = redis.call('LRANGE', queue, 0, count - 1), {}
for i, id in ipairs(ids) do
  keys[i] = data_key(id)
end
local removed = remove(keys, ids)
redis.call('LTRIM', queue, #ids, -1)
flush()
notify_watchers(removed, 'cancelled ')
if #ids == count then return { '', #removed } end
keys = {}
for i = names + 1, #ARGV do
  keys[#keys + 1] = prefix .. ':' .. ARGV[i]
end
in_chunks('UNLINK', nil, keys)
if publishes then publish_live(prefix, publishes, '{"off":true}') end
local live = redis.call('ZRANGEBYSCORE', heartbeats, string.format('(%.0f', now), '+inf', 'LIMIT', 0, 1)
if not live[1] then redis.call('UNLINK', heartbeats, prefix .. ':workers') end
live = redis.call('ZRANGEBYSCORE', sessions_key, string.format('(%.0f', now), '+inf', 'LIMIT', 0, 1)
if not live[1] then redis.call('UNLINK', sessions_key) end
if pool then
  redis.call('ZREM', pool .. ':queues', prefix)
  if redis.call('EXISTS', pool .. ':queues') == 0 then
    redis.call('UNLINK', pool .. ':limits', pool .. ':rates', pool .. ':running')
  end
end
redis.call('UNLINK', control_key) -- last: from now on the name can be used again
return { '0', #removed }
