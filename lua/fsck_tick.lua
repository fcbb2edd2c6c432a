-- Set when a schedule is due whose entry of `ticks` was lost.
--
-- Keys: schedules, ticks
-- Arguments:
--   schedule    text     its name
--   definition  text     its definition, as it was read
--   due_ms      integer  when it is due next, in ms since 1970
-- Reply: 1, or 0: the schedule was changed meanwhile, or has its entry.
-- Cost: O(log n) in the number of schedules.
-- Limits: none.

local as_read = redis.call('HGET', schedules, schedule) == definition
return as_read and redis.call('ZADD', ticks, 'NX', due_ms, schedule) or 0
