-- Give an order to a worker: `quiet` (lease nothing more), `resume` or `stop`.
--
-- It is published on the channel `:push:<session>`, and noted for the worker's next
-- `worker_beat`, as the message may be lost.
--
-- Keys: workers
-- Arguments:
--   prefix  text  the queue's name
--   worker  text  the worker
--   what    text  what to do
-- Reply: 1, or 0: there is no such worker.
-- Cost: O(1).
-- Limits: none.

if redis.call('HEXISTS', workers, worker) == 0 then
  return 0
end
redis.call('HSET', workers, 'told:' .. worker, what)
redis.pcall('PUBLISH', prefix .. ':push:' .. worker, what)
return 1
