-- Look for the keys that most queues do not have: delays, notes of `gone`, facts, events, and ids that
-- stay taken for a while.
--
-- One command says that there are none. Only if there are some, others look at each.
--
-- Needs: prefix, scheduled, gone, options, errors
-- Gives: keep_hash, recent_key, any_rare

local keep_hash = prefix .. ':events:keep'
local recent_key = prefix .. ':recent'
local any_rare = redis.call('EXISTS', scheduled, gone, options, errors, keep_hash, recent_key) > 0
