-- Return how many items wait for any worker, and whether they may because of limits or pauses, or as all of
-- them gather.
--
-- Each worker asks this all the time, to judge its health. So ids on their way to one session do not count,
-- in contrast to `counts`: that would cost more the more workers there are.
--
-- Keys: queue
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
-- Reply: how many items wait, then 1 if the queue has limits or pauses, or if no lane has its turn now, else
--   0.
-- Cost: O(1); if all that waits has a level or a group, O(log n) for each level, and for each group whose
--   turn has come, until one has a waiting item.
-- Limits: the first 100 such groups of a level are looked at.
-- Uses: control_key, held_key, lanes_key, levels_key (RARE_KEYS), LANE_END, LANE_PAST (encodings), read_clock
--   (read_clock)

-- Return whether a lane has its turn and an item. The turn of a batch that is not complete yet lies ahead.
local function has_turn()
  for _, digits in ipairs(redis.call('ZRANGE', levels_key, 0, -1)) do
    local key = prefix .. ':turns:' .. digits
    local groups = redis.call('ZRANGE', key, '-inf', read_clock() + 1, 'BYSCORE', 'LIMIT', 0, 100)
    for _, group in ipairs(groups) do
      local lane = digits .. group
      if redis.call('ZLEXCOUNT', lanes_key, '[' .. lane .. LANE_END, '(' .. lane .. LANE_PAST) > 0 then
        return true
      end
    end
  end
  return false
end

local plain = redis.call('LLEN', queue) + redis.call('LLEN', held_key)
local laned = redis.call('ZCARD', lanes_key)
local may_wait = redis.call('EXISTS', control_key) == 1 or (plain == 0 and laned > 0 and not has_turn())
return { plain + laned, may_wait and 1 or 0 }
