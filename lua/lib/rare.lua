-- Look for the keys that most queues do not have: delays, notes of `gone`, facts, events, ids that stay taken
-- for a while, what was cancelled, progress, those of a controlled queue, and of one in a newer format.
--
-- One command says that there are none. Only if there are some, others look at each. The loader puts the key
-- in place of a name such as `control_key`: a local would cost each call more.
--
-- Needs: scheduled, gone, options, errors
-- Gives: any_rare
-- Uses: cancelled_key, control_key, history_key, levels_key, progress_key, recent_key, too_new_key
--   (RARE_KEYS)

-- stylua: ignore
local any_rare = redis.call('EXISTS', scheduled, gone, options, errors, history_key, recent_key,
  control_key, levels_key, cancelled_key, progress_key, too_new_key) > 0
