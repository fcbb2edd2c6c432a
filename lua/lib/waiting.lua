-- Put ids into the queue, and find those that wait.
--
-- Needs: prefix, queue, sessions
-- Gives: enter_waiting, waits_near_an_end, waiting_ids, laned_ids

-- Put ids into the queue, or into their lanes if it is controlled. At either end, the first of them is the first to be leased.
local function enter_waiting(ids, front)
  if controlled or placed(ids) then
    lanes().enter_lanes(ids, front)
  elseif front then
    in_chunks('RPUSH', queue, reversed(ids))
  else
    in_chunks('LPUSH', queue, ids)
  end
end

-- Return whether an id is in the queue, or held, near one of the ends. Deeper it is not found.
local function waits_near_an_end(id)
  local list = controlled and redis.call('EXISTS', held_key) == 1 and held_key or queue
  return redis.call('LPOS', list, id, 'MAXLEN', 256)
    or redis.call('LPOS', list, id, 'RANK', -1, 'MAXLEN', 256)
end

-- Return up to `limit` ids from `first` on (0: the youngest); the first slice also has those in inboxes. Ids that are
-- added between two slices move the others away from the start: some are returned twice, none is missed.
local function waiting_ids(first, limit)
  local ids = redis.call('LRANGE', queue, first, first + limit - 1)
  if first == 0 then
    for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
      for _, id in ipairs(redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99)) do
        ids[#ids + 1] = id
      end
    end
  end
  return ids
end

-- Return ids that wait in the lanes of a controlled queue, and the next cursor ('0': done). The first cursor is '0'.
local function laned_ids(cursor_, limit)
  local place = tonumber(string.match(cursor_, '^(%d+)$'))
  if place then
    local ids = redis.call('LRANGE', prefix .. ':held', place, place + limit - 1)
    return ids, #ids == limit and string.format('%.0f', place + limit) or 'lanes'
  end
  local after = cursor_ == 'lanes' and '-' or '(' .. cursor_
  local members = redis.call('ZRANGE', prefix .. ':lanes', after, '+', 'BYLEX', 'LIMIT', 0, limit)
  local ids = {}
  for i, member in ipairs(members) do
    ids[i] = string.sub(member, string.find(member, '\0', 1, true) + 17)
  end
  return ids, #ids == limit and members[limit] or '0'
end
