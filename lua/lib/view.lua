-- What there is to be told of one item, as eight values at the end of a reply.
--
-- Gives back how many bytes of data it has put there: at most `room`, else none.
--
-- Needs: prefix, ledger, data_key, lease_keys_of, read_ledger
-- Gives: add_view

local function add_view(reply, id, due, room)
  local exists = redis.call('EXISTS', data_key(id)) == 1
  local size = exists and redis.call('STRLEN', data_key(id)) or -1
  local data = false
  if exists and size <= room then
    data = redis.call('GET', data_key(id))
  end
  local keys = lease_keys_of({ id })
  local holder = redis.call('GET', keys[1]) or redis.call('GET', keys[2])
  local _, token, deliveries, at = read_ledger(redis.call('HGET', ledger, id))
  local base = #reply
  reply[base + 1], reply[base + 2], reply[base + 3] = id, size, data
  reply[base + 4], reply[base + 5] = due or -1, holder
  reply[base + 6], reply[base + 7], reply[base + 8] = token or 0, deliveries or 0, at or 0
  return data and size or 0
end
