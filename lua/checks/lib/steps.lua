-- Repair times that a step of the server's clock has left too far ahead: after it was
-- ahead for a while, or was set back.
--
-- Each stored time has a maximum, counted from now. The scripts that meet a time beyond it write a right one.
--
-- Needs: ledger, deadlines, sessions
-- Gives: slack_ms, longest_watch, bound_lease, bound_leases, bound_sessions
-- Uses: now (clock), foreign_lease_left, is_ours, watch_foreign (foreign), in_chunks (keys), read_ledger
--   (ledger), values_from (lists)

-- The server's time may differ a little between two nodes, before and after a fail-over.
local slack_ms = 1000
-- Without a lease key, an item that a client of another library holds is watched for a minute.
local longest_watch = 900000

-- Return when a lease of ours ends at the latest; nil: it ends in time. It was given, or renewed after it had
-- expired, at the time in its entry of the ledger. If that lies ahead, the clock has been set back since.
local function bound_lease(score, record)
  local first, last, attempt, leased_at = read_ledger(record)
  if leased_at and leased_at > now + slack_ms and is_ours(score) then
    local ends = math.min(tonumber(score), now + math.max(0, tonumber(score) - leased_at))
    return ends, string.format('%.0f %.0f %.0f %.0f', first, last, attempt, now)
  end
end

-- Bound the leases that end last, up to `limit` of them.
local function bound_leases(limit)
  local latest = tonumber(redis.call('ZRANGE', deadlines, -1, -1, 'WITHSCORES')[2] or 0)
  if latest <= now + 60000 then return end
  local found = redis.call('ZRANGE', deadlines, -limit, -1, 'WITHSCORES')
  local ids, ends, records = values_from(found, 1, 2), {}, {}
  for i, record in ipairs(redis.call('HMGET', ledger, unpack(ids))) do
    local score = found[2 * i]
    local till, written = bound_lease(score, record)
    if till then
      ends[#ends + 1], ends[#ends + 2] = till, ids[i]
      records[#records + 1], records[#records + 2] = ids[i], written
    elseif not is_ours(score) and tonumber(score) > now + longest_watch then
      local left = foreign_lease_left(ids[i]) or 0
      if tonumber(score) > now + left + slack_ms then watch_foreign(ids[i], left) end
    end
  end
  in_chunks('ZADD', deadlines, ends)
  in_chunks('HSET', ledger, records)
end

-- Bound the registrations of sessions that last longest, up to `limit` of them. None is registered for more
-- than `longest` ms; one that lives registers again, within its time.
local function bound_sessions(limit, longest)
  local after = string.format('(%.0f', now + longest)
  local beyond = redis.call('ZRANGEBYSCORE', sessions, after, '+inf', 'LIMIT', 0, limit)
  for _, name in ipairs(beyond) do
    redis.call('ZADD', sessions, now + 10000, name)
  end
end
