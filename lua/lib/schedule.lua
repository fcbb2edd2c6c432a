-- Move items into the state "scheduled".
--
-- Needs: scheduled
-- Gives: enter_scheduled

-- Schedule items: pairs of an id and its delay in ms. A scheduled item has a lease key until it is due, so that
-- foreign deep cleaners leave it alone.
local function enter_scheduled(delayed)
  local soonest
  for _, item in ipairs(delayed) do
    local id, delay = item[1], item[2]
    redis.call('ZADD', scheduled, now + delay, id)
    redis.call('SET', lease_keys_of({ id })[1], 'lh:scheduled', 'PX', delay)
    soonest = math.min(soonest or delay, delay)
  end
  announce(soonest)
end
