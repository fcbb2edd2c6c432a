-- End a job of `add_once`: forget which ids it has added, and keep its report as a result, if wanted.
--
-- Called again with the same report, it answers the same.
--
-- Keys:
--   queue  list  ids that wait
-- Arguments:
--   prefix   text     the queue's name
--   job      text     the job's name; its result is kept under it
--   keep_ms  integer  for how long the result is kept; 0: none is
--   report   text     what is told of the job; the result is how many ids it has added, a space, and this
-- Reply: how many ids the job has added.
-- Cost: O(1); the ids are freed in the background.
-- Limits: none.

redis.call('LLEN', queue) -- a script has a key, by which a cluster finds its node
local once, result = prefix .. ':once:' .. job, prefix .. ':result:' .. job
local added = redis.call('SCARD', once)
if keep_ms > 0 then
  local told_before, same = string.match(redis.call('GET', result) or '', '^(%d+) (.*)$')
  if added == 0 and same == report then
    return tonumber(told_before)
  end
  redis.call('SET', result, string.format('%.0f', added) .. ' ' .. report, 'PX', keep_ms)
end
redis.call('UNLINK', once)
return added
