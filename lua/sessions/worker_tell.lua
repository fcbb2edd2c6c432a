-- Give an order to a worker: `quiet` (lease nothing more), `resume` or `stop`.
--
-- It is noted, as `<order> <number>`, for the worker's next `worker_beat`, and `told <number>` is published
-- on the channel `:push:<session>`: the worker beats at once, and believes only what is noted.
--
-- Keys: workers
-- Arguments:
--   prefix  text  the queue's name
--   worker  text  the worker
--   what    text  what to do
-- Reply: 1, or 0: there is no such worker.
-- Cost: O(1).
-- Limits: none.

if redis.call('HEXISTS', workers, worker) == 0 then return 0 end
local number = tonumber(string.match(redis.call('HGET', workers, 'told:' .. worker) or '', '%d+$') or 0)
if number > 1e14 then number = 0 end -- another client wrote it, and a worker would not read the next one
number = string.format('%.0f', number + 1)
redis.call('HSET', workers, 'told:' .. worker, what .. ' ' .. number)
redis.pcall('PUBLISH', prefix .. ':push:' .. worker, 'told ' .. number)
return 1
