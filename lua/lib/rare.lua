-- Look for the keys that most queues do not have: delays, notes of `gone`, facts, events, ids that stay taken for a
-- while, what was cancelled, progress, and those of a controlled queue.
--
-- One command says that there are none. Only if there are some, others look at each.
--
-- Needs: prefix, scheduled, gone, options, errors
-- Gives: keep_hash, recent_key, control_key, levels_key, held_key, progress_key, any_rare

local keep_hash = prefix .. ':events:keep'
local recent_key = prefix .. ':recent'
local control_key = prefix .. ':control'
local levels_key = prefix .. ':levels'
local held_key = prefix .. ':held'
local progress_key = prefix .. ':progress'
-- stylua: ignore
local any_rare = redis.call('EXISTS', scheduled, gone, options, errors, keep_hash, recent_key,
  control_key, levels_key, held_key, cancelled_key, progress_key) > 0
