-- Free what leases have used of limits, and wake a session for what may be leased then.
--
-- Needs: nothing
-- Gives: note_options, free_leases, wake_next
-- Uses: end_control (control), controlled (controlled), placed (facts), lane_state (lane_state), lanes
--   (lanes)

-- Read what `free_leases` needs to know of the options of items. Call it before they are forgotten.
local function note_options(ids)
  if placed(ids) then lanes().note_groups(ids) end
end

-- Make a controlled queue plain if all that made it controlled has left, else wake one session for the
-- next item that may be leased now. Call it after all that a script moves: so no way out of a lane
-- leaves an index without lanes.
local function wake_next()
  if controlled and not end_control() then lanes().promote() end
end

-- Free what leases have used of the limits of groups and of shared limits.
local function free_leases(ids)
  if controlled or lane_state then lanes().free_slots(ids) end
end
