-- Rename a key that holds something else than the queue expects, so that what a
-- user has stored there is kept.
--
-- Keys: fence
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   made    text     what follows the queue's name in the key
--   wanted  text     the type that it must have; the number of the last token must also be a number
-- Reply: 1, or 0: it has that type now, or is gone.
-- Cost: O(1).
-- Limits: none.
-- Uses: now (clock), is_count (fence)

local key = prefix .. ':' .. made
local found = redis.call('TYPE', key).ok
if found == 'none' or (found == wanted and (key ~= fence or is_count(redis.call('GET', fence)))) then
  return 0
end
local kept = prefix .. ':lost:' .. made
if redis.call('RENAMENX', key, kept) == 0 then
  redis.call('RENAME', key, string.format('%s:%.0f', kept, now))
end
return 1
