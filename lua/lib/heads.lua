-- Read when the first lease expires and when the first item falls due; nil: none will.
--
-- Needs: deadlines, scheduled
-- Gives: first_end, first_due

local function head_of(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or '')
end

local first_end, first_due = head_of(deadlines), head_of(scheduled)
