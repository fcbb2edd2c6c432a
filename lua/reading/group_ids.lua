-- Return the ids of items of a group in one state, one step of a walk at a time.
--
-- An item that is in that state from the first step to the last is found.
--
-- Keys: queue, deadlines, scheduled, options, errors, gone
-- Arguments:
--   prefix   text     the queue's name
--   of_group text     the group; empty: each item that has one
--   state    text     "waiting" (in their order; of one group), "leased" or "scheduled"
--   cursor   text     "" in the first call, then that of the last reply
--   count    count    about how many entries to look at
-- Reply: the next cursor (empty: this was the last step); then an id, its group, ….
-- Cost: O(log n + count). Waiting and leased items of a group are looked up; to find the others, all that are
--   leased or scheduled are looked at.
-- Limits: one scan of `count` entries (at most 1,000) a call; a small key is returned at once.
-- Uses: options_of (facts), laned_of_group, promoted_of (groups), append, extend, values_from (lists)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local reply, ids = { '' }, {}
if state == 'waiting' then
  local members, laned = laned_of_group(of_group, cursor, count)
  if cursor == '' then ids = promoted_of(of_group) end
  extend(ids, laned)
  reply[1] = #members == count and members[count] or ''
else
  local key = state == 'leased' and deadlines or scheduled
  if state == 'leased' and of_group ~= '' then key = prefix .. ':running:' .. of_group end
  local page = redis.call('ZSCAN', key, cursor == '' and '0' or cursor, 'COUNT', count)
  ids, reply[1] = values_from(page[2], 1, 2), page[1] ~= '0' and page[1] or ''
end
for i, found in ipairs(options_of(ids)) do
  local group = found.group
  if group and (of_group == '' or of_group == group) then append(reply, ids[i], group) end
end
return reply
