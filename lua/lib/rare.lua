-- Look for the keys that most queues do not have: delays, notes of `gone`, facts, events, ids that stay taken for a
-- while, and those of a controlled queue.
--
-- One command says that there are none. Only if there are some, others look at each.
--
-- Needs: prefix, scheduled, gone, options, errors
-- Gives: keep_hash, recent_key, control_key, levels_key, held_key, any_rare

local keep_hash = prefix .. ':events:keep'
local recent_key = prefix .. ':recent'
local control_key = prefix .. ':control'
local levels_key = prefix .. ':levels'
local held_key = prefix .. ':held'
-- stylua: ignore
local any_rare = redis.call('EXISTS', scheduled, gone, options, errors, keep_hash, recent_key,
  control_key, levels_key, held_key) > 0
