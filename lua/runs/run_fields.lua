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
local key, reply, bytes = prefix .. ':run:' .. run, {}, 0
for row = fields + 1, #ARGV do
  bytes = bytes + redis.call('HSTRLEN', key, ARGV[row])
  if bytes > max_bytes and #reply > 0 then break end
  reply[#reply + 1] = redis.call('HGET', key, ARGV[row])
end
return reply
