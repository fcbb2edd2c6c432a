-- Keep the registrations of workers.
--
-- `workers` says what each worker is, and in `told:<worker>` its last order; `heartbeats` until when
-- it is alive, or 0: it is being failed. A worker that has no entry there is given one by `fsck_entries`.
-- Once a worker has been failed, `:failed_session:<worker>` says so for an hour: it may still be alive, and
-- must not take itself for one whose registration was lost.
--
-- Needs: prefix, workers, heartbeats
-- Gives: name_of, failed_key, unregister
-- Uses: BEING_FAILED (encodings)

local function failed_key(id) return prefix .. ':failed_session:' .. id end

-- Return the name in what a worker says of itself.
local function name_of(text)
  local read, facts = pcall(cjson.decode, text or '')
  return read and type(facts) == 'table' and facts.name or ''
end

-- End a registration. Until that is done, another client finds its heartbeat, and does the rest.
local function unregister(id)
  redis.call('ZADD', heartbeats, 'XX', BEING_FAILED, id)
  redis.call('HDEL', workers, id, 'told:' .. id)
  redis.call('ZREM', heartbeats, id)
end
