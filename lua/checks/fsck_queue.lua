-- Drop ids from part of the queue that do not wait: ghosts and doubles. A lease drops them only when it meets
-- them. The same of what is held while the queue is controlled. If there are no lanes any more, the lease
-- keys of ids that have left one get an end.
--
-- Keys: queue, deadlines, scheduled
-- Arguments:
--   prefix  text     the queue's name
--   which   text     the list: "queue" or "held"
--   start   integer  the first place to check, from the young end of the queue (0: the youngest)
--   count   count    how many ids to check
-- Reply: how many ids were checked (fewer than `count`: the walk has ended), a list of repairs:
--   kind, id, …; and the ids that stay.
-- Cost: O(n) if one is dropped, else O(count).
-- Limits: `count` ids (at most 1,000). In the middle of a longer list than 200,000 none is dropped.
-- Uses: is_ours (foreign), data_key, place_in, read_in_chunks (keys), repaired, repairs (repairs)

local list = which == 'held' and prefix .. ':held' or queue
local ids = redis.call('LRANGE', list, start, start + count - 1)
local length = redis.call('LLEN', list)
local leased = read_in_chunks('ZMSCORE', deadlines, ids)
local due = read_in_chunks('ZMSCORE', scheduled, ids)
local from_old = length - start - #ids -- how many are older
local dropped, seen, staying = 0, {}, {}
-- An id that never exists is written over them, and removed.
local mark = none .. ' fsck'
if math.min(start, from_old) <= 100000 then
  for i = #ids, 1, -1 do
    local id = ids[i]
    local is_ghost = redis.call('EXISTS', data_key(id)) == 0
    if is_ghost or seen[id] or due[i] or is_ours(leased[i]) then
      redis.call('LSET', list, start + i - 1, mark)
      dropped = dropped + 1
      repaired(is_ghost and 'ghost' or 'two_places', id)
      ids[i] = mark
    end
    seen[id] = true
  end
end
if dropped > 0 then redis.call('LREM', list, start <= from_old and dropped or -dropped, mark) end
for _, id in ipairs(ids) do
  staying[#staying + 1] = id ~= mark and id or nil
end

local keys = {}
for i, id in ipairs(redis.call('EXISTS', prefix .. ':lanes') == 0 and staying or {}) do
  keys[i] = prefix .. ':lease:' .. id
end
for i, holder in ipairs(keys[1] and redis.call('MGET', unpack(keys)) or {}) do
  if place_in(holder) and redis.call('PTTL', keys[i]) == -1 then
    redis.call('PEXPIRE', keys[i], 86400000) -- a day
    repaired('no_time_to_live', keys[i])
  end
end
return { #ids, repairs, staying }
