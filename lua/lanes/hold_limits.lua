-- Set limits that handlers hold by name, and return all of them.
--
-- Keys: queue
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   rows    rest     field (see `lanes/lib/holds`), value (empty: remove it), …
-- Reply: how many fields have another value now; then field, value, …; of each name, `held/<name>` is how
--   many places are held, and `waits/<name>` how many wait.
-- Cost: O(n) in the number of names.
-- Limits: 1,000 names.
-- Uses: drop_ended_holds, give_places, holders_of_name, line_of_name (holds), append, extend (lists)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local key, changed, names, adds = prefix .. ':holds', 0, {}, false
for row = rows + 2, #ARGV, 2 do
  adds = adds or ARGV[row] ~= '' and redis.call('HEXISTS', key, ARGV[row - 1]) == 0
end
if adds and redis.call('HLEN', key) >= 2000 then return redis.error_reply('LIMIT 1000 names') end
for row = rows + 1, #ARGV, 2 do
  local field, value = ARGV[row], ARGV[row + 1]
  if value == '' then
    changed = changed + redis.call('HDEL', key, field)
  elseif redis.call('HGET', key, field) ~= value then
    redis.call('HSET', key, field, value)
    changed = changed + 1
  end
  names[string.match(field, '/(.*)$')] = true
end
for name in pairs(names) do
  drop_ended_holds(name)
  give_places(name)
end
local reply = { changed }
local cursor = '0'
repeat
  local page = redis.call('HSCAN', key, cursor, 'COUNT', 1000)
  cursor = page[1]
  extend(reply, page[2])
until cursor == '0'
for i = 2, #reply, 2 do
  names[string.match(reply[i], '/(.*)$') or ''] = true
end
for name in pairs(names) do
  append(reply, 'held/' .. name, redis.call('ZCARD', holders_of_name(name)) .. '')
  append(reply, 'waits/' .. name, redis.call('ZCARD', line_of_name(name)) .. '')
end
return reply
