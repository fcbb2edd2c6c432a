-- Set when a schedule is due whose entry of `ticks` was lost, or is too late, as the clock was ahead.
--
-- Keys: schedules, ticks
-- Arguments:
--   prefix      text     the queue's name
--   schedule    text     its name
--   definition  text     its definition, as it was read
--   due_ms      integer  when it is due next, in ms since 1970
--   wrong_ms    integer  when it was due, as it was read; -1: it had no entry
-- Reply: 1, or 0: the schedule was changed in between, or has another entry.
-- Cost: O(log n) in the number of schedules.
-- Limits: none.

local as_read = redis.call('HGET', schedules, schedule) == definition
local due = tonumber(redis.call('ZSCORE', ticks, schedule) or -1)
if not as_read or due ~= wrong_ms then return 0 end
redis.call('ZADD', ticks, due_ms, schedule)
return 1
