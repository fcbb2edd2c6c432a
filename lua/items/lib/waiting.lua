-- Put ids into the queue, and find those that wait.
--
-- Needs: prefix, queue, scheduled, sessions
-- Gives: enter_waiting, waits_near_an_end, find_member, find_waiting, leave_places, waiting_ids, laned_ids
-- Uses: held_key, lanes_key (RARE_KEYS), controlled (controlled), options_of, placed (facts), ids_in,
--   in_chunks, place_in, read_in_chunks (keys), lanes (lanes), extend, reversed (lists), have_look (looks)

-- Put ids into the queue, or into their lanes if it is controlled. At either end, the first of them is the
-- first to be leased. `unawaited`: no session waits, as the script has read. `again`: their leases have
-- expired; `waited`: they were released to the front; see `enter_lane`.
local function enter_waiting(ids, front, unawaited, again, waited)
  if controlled or placed(ids) then
    lanes().enter_lanes(ids, front, again, waited)
  elseif front then
    in_chunks('RPUSH', queue, reversed(ids))
  else
    in_chunks('LPUSH', queue, ids)
  end
  if not controlled and not unawaited then have_look(prefix, #ids) end
end

-- Return which list an id is in, the queue or what is held, and near which end: 1
-- or -1. Deeper it is not found.
local function waits_near_an_end(id)
  for _, list in ipairs({ queue, controlled and held_key or nil }) do
    for rank = 1, -1, -2 do
      if redis.call('LPOS', list, id, 'RANK', rank, 'MAXLEN', 256) then return list, rank end
    end
  end
end

-- Return the member of an id that waits in the lane of its options; nil: it does not, or
-- another client has its lease key.
local function find_member(id)
  local place = place_in(redis.pcall('GET', prefix .. ':lease:' .. id))
  local member = place and lanes().lane_of(options_of({ id })[1]) .. place .. id
  return member and redis.call('ZSCORE', lanes_key, member) and member or nil
end

-- Find where ids wait that are not scheduled, for `leave_places`. Those deep in a list are not found: they
-- are dropped when they are met. Call it before the first write.
local function find_waiting(ids)
  local places = {}
  for i, due in ipairs(read_in_chunks('ZMSCORE', scheduled, ids)) do
    local id = ids[i]
    local member = controlled and not due and find_member(id)
    if member then
      places[#places + 1] = { id, lanes_key, member }
    elseif not due then
      places[#places + 1] = { id, waits_near_an_end(id) }
    end
  end
  return places
end

-- Remove ids from their places: id, key, and the member of a lane or the end of a list.
local function leave_places(places)
  for _, place in ipairs(places) do
    local id, key, at = unpack(place)
    if key == lanes_key then
      redis.call('ZREM', key, at)
    elseif key and redis.call('LREM', key, at, id) == 0 and controlled then
      redis.call('LREM', held_key, at, id) -- the queue was renamed since
    end
  end
end

-- Return up to `limit` ids from `first` on (0: the youngest); the first slice also has those in
-- inboxes. Ids that are added between two slices move the others away from the start: some are
-- returned twice, none is missed. `with_held`: what is held follows, so that a queue which begins or
-- ceases to be controlled moves nothing.
local function waiting_ids(first, limit, with_held)
  local ids, is_first = redis.call('LRANGE', queue, first, first + limit - 1), first == 0
  if with_held and #ids < limit then
    first = math.max(0, first - redis.call('LLEN', queue))
    extend(ids, redis.call('LRANGE', prefix .. ':held', first, first + limit - #ids - 1))
  end
  if is_first then
    for _, session in ipairs(redis.call('ZRANGE', sessions, 0, 999)) do
      extend(ids, redis.call('LRANGE', prefix .. ':inbox:' .. session, 0, 99))
    end
  end
  return ids
end

-- Return ids that wait in the lanes of a controlled queue, and the next cursor ('0':
-- done). The first cursor is '0'.
local function laned_ids(cursor_, limit)
  local place = tonumber(string.match(cursor_, '^(%d+)$'))
  if place then
    local ids = redis.call('LRANGE', prefix .. ':held', place, place + limit - 1)
    return ids, #ids == limit and string.format('%.0f', place + limit) or 'lanes'
  end
  local after = cursor_ == 'lanes' and '-' or '(' .. cursor_
  local members = redis.call('ZRANGE', prefix .. ':lanes', after, '+', 'BYLEX', 'LIMIT', 0, limit)
  local ids = ids_in(members)
  return ids, #ids == limit and members[limit] or '0'
end
