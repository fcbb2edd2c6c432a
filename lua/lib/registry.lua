-- Keep the registrations of workers.
--
-- `workers` says what each worker is, and in `told:<worker>` what it was told last; `heartbeats` until when it is alive,
-- or 0: it is being failed. A worker that has no entry there is given one by a light clean.
--
-- Needs: workers, heartbeats
-- Gives: name_of, unregister, heal_registrations

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

-- Let workers whose heartbeat is lost seem alive for a while, and drop what workers were told that are gone.
local function heal_registrations()
  local page = redis.call('HSCAN', workers, 0, 'COUNT', 500)
  for i = 1, #page[2], 2 do
    local told = string.match(page[2][i], '^told:(.*)$')
    if not told and not redis.call('ZSCORE', heartbeats, page[2][i]) then
      redis.call('ZADD', heartbeats, read_clock() + 15000, page[2][i])
    elseif told and redis.call('HEXISTS', workers, told) == 0 then
      redis.call('HDEL', workers, page[2][i])
    end
  end
end
