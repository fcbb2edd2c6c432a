-- Hold the functions for lanes, and their state, once they are needed: see `lanes/lib/lanes`.
--
-- Needs: nothing
-- Gives: lane_state

local lane_state
