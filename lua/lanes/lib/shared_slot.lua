-- Keep the slot that a lease has of a limit which queues share.
--
-- Needs: prefix
-- Gives: keep_shared_slot
-- Uses: control_key (RARE_KEYS), QUEUE_END (encodings)

-- Have a lease that is renewed late use its shared slot again: it was free since the lease had expired. That
-- of a group was not: see `free_of`.
local function keep_shared_slot(id, ends)
  local pool = redis.pcall('HGET', control_key, 'shared')
  if type(pool) == 'string' then redis.call('ZADD', pool .. ':running', ends, prefix .. QUEUE_END .. id) end
end
