-- Move ids into and out of the states.
--
-- Write the new place first: call `enter_…` before `leave_…`. So a script that is stopped between two writes
-- leaves an id in two places, which leasing heals, and never in none.
--
-- Needs: deadlines, scheduled
-- Gives: enter_scheduled, leave_scheduled, leave_leased, drop_lease_keys
-- Uses: controlled (controlled), announce (due), SCHEDULED (encodings), in_chunks (keys), lanes (lanes),
--   unlist (processing), read_clock (read_clock), free_leases (slots)

local delayed_now = {}

-- Schedule items: pairs of an id and its delay in ms. A scheduled item has a lease key until it is due, so
-- that foreign deep cleaners leave it alone.
local function enter_scheduled(delayed)
  local places, soonest, began = {}, nil, read_clock()
  for i, item in ipairs(delayed) do
    local id, delay = item[1], item[2]
    places[2 * i - 1], places[2 * i] = began + delay, id
    delayed_now[id] = true
    soonest = math.min(soonest or delay, delay)
  end
  in_chunks('ZADD', scheduled, places)
  for _, item in ipairs(delayed) do
    redis.call('SET', prefix .. ':lease:' .. item[1], SCHEDULED, 'PX', item[2])
  end
  announce(soonest)
end

-- End delays, but not those that this script has begun.
local function leave_scheduled(ids)
  local leaving = {}
  for _, id in ipairs(ids) do
    leaving[#leaving + 1] = not delayed_now[id] and id or nil
  end
  in_chunks('ZREM', scheduled, leaving)
end

-- Remove lease keys, but not those of items that this script has scheduled or put into a lane.
local function drop_lease_keys(ids)
  local keys, kept_now = {}, controlled and lanes().kept_keys
  for _, id in ipairs(ids) do
    keys[#keys + 1] = prefix .. ':leased_by_session:' .. id
    if not (delayed_now[id] or (kept_now and kept_now[id])) then
      keys[#keys + 1] = prefix .. ':lease:' .. id
    end
  end
  in_chunks('UNLINK', nil, keys)
end

-- End leases, after `check_processing` and, if the options of the items are
-- forgotten before, after `note_options`.
local function leave_leased(ids)
  in_chunks('ZREM', deadlines, ids)
  unlist(ids)
  drop_lease_keys(ids)
  free_leases(ids)
end
