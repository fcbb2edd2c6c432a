-- Return ids of items in one state, one step of a walk at a time.
--
-- An item that is in that state from the first step to the last is returned at least once. The
-- cursor is that of the key's own command, `ZSCAN`, or a position for `LRANGE`: a client may read
-- the rest of a long listing with these.
--
-- Keys: queue, processing, sessions, deadlines, scheduled, dead, fence
-- Arguments:
--   prefix  text     the queue's name
--   state   text     "waiting", "leased", "scheduled" or "dead"; "processing": leased by any client; "laned":
--       waiting in a lane, and not in `queue`
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many ids to return
-- Reply: the next cursor ("0": done), 1 if an item was ever leased here, else 0 ("laned": 1 if the
--   queue is controlled), then the ids.
-- Cost: O(count); O(cursor) into a list.
-- Limits: `count` (at most 1,000) ids, and the inboxes of 1,000 sessions; a small set is returned at once.
-- Uses: laned_ids, waiting_ids (waiting)

local reply = { '0', redis.call('GET', fence) and 1 or 0 }
local sets = { leased = deadlines, scheduled = scheduled, dead = dead }
local ids, step
if state == 'laned' then
  step = 1
  ids, reply[1] = laned_ids(cursor, count)
  reply[2] = redis.call('EXISTS', prefix .. ':levels', prefix .. ':held', prefix .. ':control') > 0 and 1 or 0
elseif sets[state] then
  local page = redis.call('ZSCAN', sets[state], cursor, 'COUNT', count)
  reply[1], ids, step = page[1], page[2], 2
else
  step = 1
  local start = tonumber(cursor)
  if state == 'waiting' then
    ids = waiting_ids(start, count)
  else
    ids = redis.call('LRANGE', processing, start, start + count - 1)
  end
  if #ids >= count then reply[1] = string.format('%.0f', start + count) end
end
for i = 1, #ids, step do
  reply[#reply + 1] = ids[i]
end
return reply
