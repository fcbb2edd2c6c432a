-- Read when the first lease expires and when the first item falls due, if any does.
--
-- Needs: deadlines, scheduled
-- Gives: first_end, first_due
-- Uses: any_rare (rare)

local first_end = tonumber(redis.call('ZRANGE', deadlines, 0, 0, 'WITHSCORES')[2] or '')
local first_due = any_rare and tonumber(redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or '')
