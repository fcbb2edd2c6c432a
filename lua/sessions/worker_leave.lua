-- End the registration of a worker that stops, and holds no lease.
--
-- Keys: gone, scheduled, options, errors, events, workers, heartbeats
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   session  text     the worker
-- Reply: 1, or 0: it was not registered.
-- Cost: O(log n) in the number of workers.
-- Limits: none.
-- Uses: begin_writes (begin_writes), emit, emitting, flush (emit), name_of, unregister (registry)

local known = redis.call('ZSCORE', heartbeats, session)
local registered = redis.call('HGET', workers, session)
begin_writes() -- even then
unregister(session)
if emitting and known then emit('worker_down', session, { details = { worker = name_of(registered) } }) end
flush()
return known and 1 or 0
