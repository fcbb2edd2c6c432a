-- Return fields of a flow run's hash.
--
-- Keys: queue
-- Arguments:
--   prefix     text     the home queue's name
--   run        text     the run's id
--   max_bytes  integer  stop after this many bytes of values; one is always read
--   fields     rest     names of fields
-- Reply: the values (false: the hash does not have it), fewer than fields if they did not
--   fit: ask again for the others.
-- Cost: O(1) per field.
-- Limits: at most 1,000 fields and `max_bytes` a call, or one value.

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local key, last, bytes = prefix .. ':run:' .. run, fields, 0
for row = fields + 1, #ARGV do
  bytes = bytes + redis.call('HSTRLEN', key, ARGV[row])
  if bytes > max_bytes and last > fields then break end
  last = row
end
return last > fields and redis.call('HMGET', key, unpack(ARGV, fields + 1, last)) or {}
