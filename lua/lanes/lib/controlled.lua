-- Find out whether a queue is controlled: it has items with a level or a group, or limits or a pause.
--
-- In a plain queue all waiting ids are in `queue`. In a controlled one they are in lanes, see
-- `lanes/lib/lanes`; `queue` holds only what other clients push there, and an id that shall wake a session.
--
-- Needs: nothing
-- Gives: controlled
-- Uses: control_key, held_key, lanes_key, levels_key, too_new_key (RARE_KEYS), any_rare (rare)

local controlled = any_rare and redis.call('EXISTS', control_key, levels_key, too_new_key) > 0
if controlled then
  -- Read before anything is written, as all keys are.
  redis.call('HLEN', control_key)
  redis.call('ZCARD', levels_key)
  redis.call('ZCARD', lanes_key)
  redis.call('LLEN', held_key)
end
