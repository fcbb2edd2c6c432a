-- Watch the lease of a foreign client, in `deadlines`; see `foreign`.
--
-- Needs: deadlines
-- Gives: watch_foreign

local function watch_foreign(id, left)
  redis.call('ZADD', deadlines, now + left + 0.5, id)
end
