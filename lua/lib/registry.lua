-- Keep the registrations of workers.
--
-- `workers` says what each worker is, and in `told:<worker>` what it was told last; `heartbeats` until when it is alive,
-- or 0: it is being failed. A worker that has no entry there is given one by `fsck_entries`.
--
-- Needs: workers, heartbeats
-- Gives: name_of, unregister

-- Return the name in what a worker says of itself.
local function name_of(text)
  local read, facts = pcall(cjson.decode, text or '')
  return read and type(facts) == 'table' and facts.name or ''
end

-- End a registration. Until that is done, another client finds its heartbeat, and does the rest.
local function unregister(id)
  redis.call('ZADD', heartbeats, 'XX', 0, id)
  redis.call('HDEL', workers, id, 'told:' .. id)
  redis.call('ZREM', heartbeats, id)
end
