-- Hold the functions for lanes, and their state, once they are needed: see `lanes/lib/lanes`.
--
-- Needs: nothing
-- Gives: lane_state
--
-- Beside the functions, `lanes()` gives it these.
--
-- Fields of `lane_state`:
--   kept_keys  table   id → true: it waits in a lane now, and its lease key stays (lanes)
--   group_of   table   id → the group of an item whose lease ends (lanes)
--   us         number  the time that decides about rates, in µs, once it was read (limits)
--   control    table   the limits of the queue itself and of every group, once they were read (limits)

local lane_state
