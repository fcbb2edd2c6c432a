-- End a run of `add_once`: it adds nothing any more, and its report is kept as a result, if wanted.
--
-- Which ids it has added is forgotten. That it has ended is known for a time, as tasks may outlive it. Called
-- again with the same report, it answers the same.
--
-- Keys: queue
-- Arguments:
--   prefix    text     the queue's name
--   run       text     the run
--   job       text     the job's name, which is free again; the result is kept under it
--   ended_ms  integer  for how long it is known that the run has ended
--   keep_ms   integer  for how long the result is kept; 0: none is
--   report    text     what is told of the job; the result is how many ids it has added, a space, and this
-- Reply: how many ids the run has added; -1: it was ended before, with another report.
-- Cost: O(1); the ids are freed in the background.
-- Limits: none.

redis.call('LLEN', queue) -- a script has a key, by which a cluster finds its node
local once, result = prefix .. ':once:' .. run, prefix .. ':result:' .. job
local pointer = prefix .. ':once:' .. job .. ':run'
local open, kept = redis.call('GET', pointer), keep_ms > 0 and redis.call('GET', result) or ''
if redis.call('SISMEMBER', once, '') == 1 then
  local added, same = string.match(kept, '^(%d+) (.*)$')
  return same == report and tonumber(added) or -1
end
local added = redis.call('SCARD', once)
if keep_ms > 0 then
  redis.call('SET', result, string.format('%.0f', added) .. ' ' .. report, 'PX', keep_ms)
end
if open == run then
  redis.call('UNLINK', pointer)
end
redis.call('UNLINK', once)
redis.call('SADD', once, '') -- no item has this id
redis.call('PEXPIRE', once, ended_ms)
return added
