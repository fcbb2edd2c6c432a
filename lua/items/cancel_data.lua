-- Cancel the items of one state whose data is equal to a text, one step of a walk at a time.
--
-- An item that is in that state from the first step to the last is found.
--
-- Keys: queue, processing, gone, deadlines, scheduled, sessions, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   payload  text     the data
--   keep_ms  integer  for how long the item is noted as cancelled, for callers that
--       ask for its result; 0: not at all
--   state    text     "waiting", "leased" or "scheduled"; "laned": waiting in a lane, and not in `queue`
--   cursor   text     "0" in the first call, then that of the last reply
--   count    count    about how many items to look at
--   at_most  count    how many items to cancel
-- Reply: 1 if this was the last step, else 0; the next cursor; then the ids that were cancelled.
-- Cost: O(count), and O(size) for each item whose data has the same size; O(cursor) into a list.
-- Limits: `count` (at most 1,000) items, and the inboxes of 1,000 sessions.
-- Needs: check
-- Uses: held_key (RARE_KEYS), cancel (cancel), data_key (keys), extend, values_from (lists), laned_ids,
--   waiting_ids (waiting)

-- Return ids to look at, and the next cursor, if there is one.
local function page()
  if state == 'waiting' then
    local start = tonumber(cursor)
    local ids = waiting_ids(start, count)
    return ids, #ids >= count and start + count
  elseif state == 'laned' then
    local ids, after = laned_ids(cursor, count)
    return ids, after ~= '0' and after
  end
  local key = state == 'leased' and deadlines or scheduled
  local found = redis.call('ZSCAN', key, cursor, 'COUNT', count)
  return values_from(found[2], 1, 2), found[1] ~= '0' and found[1]
end

local ids, next_cursor = page()
local equal, seen, is_full = {}, {}, false
for _, id in ipairs(ids) do
  local key = data_key(id)
  if not is_full and not seen[id] and redis.pcall('STRLEN', key) == #payload then
    seen[id] = true
    if redis.call('GET', key) == payload then
      is_full = #equal == at_most
      equal[#equal + 1] = not is_full and id or nil
    end
  end
end
local list = state == 'laned' and held_key or queue
local before = redis.call('LLEN', list)
cancel(equal, keep_ms)
local is_place = state == 'waiting' or (state == 'laned' and string.find(next_cursor or '', '^%d+$'))
if is_full then
  next_cursor = cursor -- the same step again finds the rest
elseif next_cursor and is_place then
  -- What has left the list has moved the others towards its start.
  local moved = before - redis.call('LLEN', list)
  next_cursor = string.format('%.0f', math.max(0, next_cursor - moved))
end
local reply = { next_cursor and 0 or 1, next_cursor or '0' }
extend(reply, equal)
return reply
