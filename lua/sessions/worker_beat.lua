-- Register a worker on a queue, or refresh its registration.
--
-- A worker is registered under the session that holds its leases. Its registration says what it is and does.
-- A worker that is refused with 0 has been failed, or is about to be: see `fail_session`. It stops its runs,
-- and registers again under another session. One that is refused with -1 is unknown: the registrations were
-- lost, as after FLUSHALL. It registers again, and renews its leases to learn which of them are left.
--
-- Keys: gone, scheduled, options, errors, events, workers, heartbeats
-- Arguments:
--   prefix    text     the queue's name
--   now_ms    integer  the time; empty: the server's time
--   session   text     the worker
--   alive_ms  integer  for how long the registration holds; empty: until the worker leaves
--   first     flag     1: register; 0: refresh, which is refused if there is no registration
--   about     text     what the worker says of itself: a JSON object
-- Reply: 1 (0: it was failed; -1: it is not registered), the time in ms, the worker's last order
--   (see `worker_tell`; empty: none), how many workers are registered, then up to 10 other workers
--   whose registration no longer holds.
-- Cost: O(log n) in the number of workers, and the size of `about`.
-- Limits: 64 KiB of `about`.
-- Uses: begin_writes (begin_writes), now (clock), emit, emitting, flush (emit), extend (lists), failed_key,
--   name_of (registry)

if #about > 65536 then return redis.error_reply('LIMIT 64 KiB') end
local score = tonumber(redis.call('ZSCORE', heartbeats, session) or '')
local known, told = unpack(redis.call('HMGET', workers, session, 'told:' .. session))
told = told or ''
if score == 0 or redis.call('EXISTS', failed_key(session)) == 1 then
  return { 0, now, told, 0 }
elseif not (first or score or known) then
  return { -1, now, told, 0 }
end
begin_writes() -- a worker must be able to refresh even then
redis.call('HSET', workers, session, about)
redis.call('ZADD', heartbeats, alive_ms and now + alive_ms or '+inf', session)
local reply = { 1, now, told, redis.call('ZCARD', heartbeats) }
-- If many have died at once, not all workers are named the same ones.
local many = redis.call('ZCOUNT', heartbeats, '-inf', now) - 10
local first_of = many > 0 and tonumber(string.sub(redis.sha1hex(session), 1, 8), 16) % (many + 1) or 0
extend(reply, redis.call('ZRANGEBYSCORE', heartbeats, '-inf', now, 'LIMIT', first_of, 10))
if emitting and not (score or known) then
  emit('worker_up', session, { details = { worker = name_of(about) } })
end
flush()
return reply
