-- Set or remove limits of a queue, of its groups, and of what it shares with other queues.
--
-- The queue is controlled as long as it has any: see `lanes/lib/lanes`. Leases that have begun are not ended.
--
-- The fields are `rate` (`<interval in µs>:<burst>`; `:<burst>`: with the interval that it has),
-- `concurrency` (how many may be leased at a time), `ageing` (ms after which a level counts as one more), and
-- `shared` (the name under which queues share limits; then `shared/rate` and `shared/concurrency` are these);
-- and `rate/<group>` and `concurrency/<group>`, for `*` of each group without separate ones.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   rows    rest     field, value (empty: remove it), …
-- Reply: -1 if a rate has no interval yet, and nothing was done; 1 if it has to be called again, with the
--   same or no rows, to give more groups their turn, else 0; how many fields have another value now.
-- Cost: O(1) per row, plus O(log n) for each group that had to wait.
-- Limits: 1,000 rows, 500 groups that had to wait.
-- Uses: control_key, held_key (RARE_KEYS), limits_changed (control), emit, emitting, flush (emit), in_chunks
--   (keys), extend (lists)

redis.call('LLEN', queue)
redis.call('LLEN', held_key)
redis.call('HLEN', control_key)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', scheduled)

local changes, removed, shared, pool_changes, pool_removed = {}, {}, nil, {}, {}
local names, pool_names, in_force = {}, {}, {}
for row = rows + 1, #ARGV, 2 do
  local field, value = ARGV[row], ARGV[row + 1]
  local of_pool = string.match(field, '^shared/(.*)')
  local set, unset = of_pool and pool_changes or changes, of_pool and pool_removed or removed
  table.insert(of_pool and pool_names or names, of_pool or field)
  if string.sub(value, 1, 1) == ':' then
    local key = control_key
    if of_pool then key = (shared or redis.call('HGET', key, 'shared') or '') .. ':limits' end
    local interval = string.match(redis.call('HGET', key, of_pool or field) or '', '^%d+')
    if not interval then return { -1, 0 } end
    value = interval .. value
  end
  if value == '' then
    unset[#unset + 1] = of_pool or field
  else
    set[#set + 1], set[#set + 2] = of_pool or field, value
  end
  if field == 'shared' then shared = value end
end
local before = redis.call('HGET', control_key, 'shared')
local pool = shared or before or ''
if shared and shared ~= '' and redis.call('ZCARD', shared .. ':queues') >= 64 then
  if not redis.call('ZSCORE', shared .. ':queues', prefix) then
    return redis.error_reply('LIMIT 64 queues')
  end
end

-- Return the values of the fields that the rows name.
local function read_named()
  local found = #names > 0 and redis.call('HMGET', control_key, unpack(names)) or {}
  if pool ~= '' and #pool_names > 0 then
    extend(found, redis.call('HMGET', pool .. ':limits', unpack(pool_names)))
  end
  return found
end
local values_before = read_named()

if pool ~= '' then
  redis.call('ZADD', pool .. ':queues', 'NX', 'inf', prefix)
  in_chunks('HSET', pool .. ':limits', pool_changes)
  in_chunks('HDEL', pool .. ':limits', pool_removed)
end
in_chunks('HSET', control_key, changes)
in_chunks('HDEL', control_key, removed)
if before and shared and before ~= shared then
  redis.call('ZREM', before .. ':queues', prefix)
  if redis.call('EXISTS', before .. ':queues') == 0 then
    redis.call('UNLINK', before .. ':limits', before .. ':rates', before .. ':running')
  end
end
local is_left = limits_changed()
local changed, group = 0, nil
for i, value in ipairs(read_named()) do
  local field = names[i] or 'shared/' .. pool_names[i - #names]
  changed = changed + (value ~= values_before[i] and 1 or 0)
  group = names[i] and string.match(names[i], '/(.*)') or group
  in_force[field] = value or nil
end
if emitting and changed > 0 then emit('limited', '', { details = { group = group, limits = in_force } }) end
flush()
return { is_left and 1 or 0, changed }
