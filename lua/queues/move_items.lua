-- Move items that wait or are scheduled from another queue into this one, with their options and attempts.
--
-- An item whose id exists here already, and the stage of a flow run, stays where it is. The data is renamed,
-- which decides: before it this queue has ids without data, after it the other one.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, options, errors, events, format
-- Arguments:
--   prefix   text     the name of the queue that gets the items
--   now_ms   integer  the time; empty: the server's time
--   source   text     the name of the queue that they are taken from, in the same slot
--   spot     text     where there: "queue", "lanes" (those above level 0), "held" or "lower"
--       (the other lanes); "ids": anywhere
--   left_out integer  how many of the first ids there to leave out
--   count    count    how many ids to check there
--   entries  rest     ids, or none
-- Reply: how many ids were checked (-1: the queues differ in their formats), how many of them stay, then the
--   ids that were moved.
-- Cost: O(log n) per id, and O(left_out) in a list if some stay.
-- Limits: at most 1,000 ids a call.
-- Needs: check
-- Calls: fsck_lanes
-- Uses: find_earlier, forget_earlier (begin_incarnation), chunks_key, keeps_chunks (chunks), now (clock),
--   closed_error, is_closed (closed), arguments_at, keys_at (elsewhere), emit, emitting, flush (emit),
--   FROM_NO_LEVEL, OURS, OURS_SIZE, TO_NO_LEVEL (encodings), any_options, note_errors, read_options,
--   write_options (facts), call_fsck_lanes, keys_of_fsck_lanes (fsck_lanes), data_key, ids_in, in_chunks,
--   place_in (keys), lanes (lanes), read_ledger (ledger), reversed (lists), publish_live (live),
--   enter_scheduled (move), wake_next (slots), drop_tags (tags), leave_unstarted (unstarted), enter_waiting
--   (waiting)

if is_closed then return closed_error() end
local function numbers_in(key) return string.match(redis.call('GET', key) or '1 1', '^%d+ %d+') end
if numbers_in(source .. ':format') ~= numbers_in(format) then return { -1 } end
local function theirs(name) return source .. ':' .. name end
local ids, members, is_laned = {}, {}, spot == 'lanes' or spot == 'lower'
if spot == 'ids' then
  for row = entries + 1, #ARGV do
    ids[#ids + 1] = ARGV[row]
  end
elseif is_laned then
  local first, last = '-', TO_NO_LEVEL
  if spot == 'lower' then
    first, last = FROM_NO_LEVEL, '+'
  end
  local lanes_there = theirs('lanes')
  members = redis.call('ZRANGE', lanes_there, first, last, 'BYLEX', 'LIMIT', left_out, count)
  ids = ids_in(members)
else
  ids = reversed(redis.call('LRANGE', theirs(spot), -left_out - count, -left_out - 1))
end
if #ids == 0 or count == 0 or redis.call('HEXISTS', theirs('control'), 'closed') == 1 then
  return { 0, 0 } -- or all that is there is about to be deleted
end

-- Return whether a client of another library holds the item there.
local function is_foreign(id)
  for _, name in ipairs({ 'lease:', 'leased_by_session:' }) do
    local holder = redis.pcall('GET', theirs(name) .. id)
    if type(holder) == 'string' and string.sub(holder, 1, OURS_SIZE) ~= OURS then return true end
  end
  return false
end

redis.call('LLEN', theirs('queue'))
redis.call('LLEN', theirs('held'))
redis.call('HLEN', theirs('progress'))
redis.call('ZCARD', theirs('tags'))
local scores = redis.call('ZMSCORE', theirs('deadlines'), unpack(ids))
local due = redis.call('ZMSCORE', theirs('scheduled'), unpack(ids))
local records_there = redis.call('HMGET', theirs('ledger'), unpack(ids))
local options_there = redis.call('HMGET', theirs('options'), unpack(ids))
local errors_there = redis.call('HMGET', theirs('errors'), unpack(ids))
local token = tonumber(redis.call('GET', fence) or 0)
local is_controlled = redis.call('EXISTS', theirs('levels')) == 1
local moving, waiting, delayed, leaving_places, leaving_members = {}, {}, {}, {}, {}
local text_of, notes, attempts, started, due_at, seen, stayed = {}, {}, {}, {}, {}, {}, 0
for i, id in ipairs(ids) do
  local leased = scores[i] or is_foreign(id)
  local elsewhere = spot ~= 'ids' and (scores[i] or due[i])
  local exists = redis.call('EXISTS', theirs('item:') .. id) == 1 and not seen[id]
  local text = options_there[i]
  -- It stays where its flow run looks for it.
  local is_stage = text and string.find(text, '"run"', 1, true) and read_options(text).run
  local stays = not elsewhere and exists and (leased or is_stage or redis.call('EXISTS', data_key(id)) == 1)
  if stays then
    stayed = stayed + 1
  elseif spot ~= 'ids' then
    leaving_places[#leaving_places + 1] = i
    leaving_members[#leaving_members + 1] = members[i]
  end
  if exists and not stays and not elsewhere then
    moving[#moving + 1], seen[id] = id, true
    text_of[id] = options_there[i] or nil
    if errors_there[i] then
      notes[#notes + 1], notes[#notes + 2] = id, errors_there[i]
    end
    local _, _, attempt, leased_at = read_ledger(records_there[i])
    started[id] = attempt ~= nil
    if token and attempt then
      -- No token is of this incarnation yet.
      attempts[#attempts + 1] = id
      attempts[#attempts + 1] = string.format('%.0f %.0f %.0f %.0f', token + 1, token, attempt, leased_at)
    end
    if due[i] then
      due_at[id] = tonumber(due[i])
      delayed[#delayed + 1] = { id, math.max(1, due_at[id] - now) }
    else
      waiting[#waiting + 1] = id
    end
    if is_controlled and spot == 'ids' then
      local place = place_in(redis.pcall('GET', theirs('lease:') .. id))
      local lane = place and lanes().lane_of(read_options(options_there[i]))
      leaving_members[#leaving_members + 1] = place and lane .. place .. id or nil
    end
  end
end

-- Emit an event in the other queue, with the name of this one: see `events/lib/emit`.
local function emit_elsewhere(what, gone_ids)
  local keep = redis.call('HMGET', theirs('events:keep'), 'last', 'count', 'age_ms', 'live')
  local last = tonumber(keep[1])
  if not last then return end
  local message, details = {}, { queue = prefix }
  for i, id in ipairs(gone_ids) do
    if keep[2] ~= '0' or keep[3] ~= '0' then
      -- stylua: ignore
      redis.pcall('XADD', theirs('events'), string.format('%.0f-1', last + i),
        'details', cjson.encode(details), 'what', what, 'id', id, 'time', now,
        'holder', '', 'token', '', 'attempt', '', 'size', '', 'due', '', 'front', '', 'error', '')
    end
    message[i] = { what = what, id = id, time = now, details = details }
  end
  local text = string.format('%.0f', last + #gone_ids)
  redis.call('HSET', theirs('events:keep'), 'last', text)
  redis.pcall('PUBLISH', theirs('events'), text)
  if keep[4] and keep[4] ~= '' then
    message = string.format('{"first":%.0f,"events":%s}', last + 1, cjson.encode(message))
    publish_live(source, keep[4], message)
  end
end

-- Take ids out of the other queue, whose data is gone from there. Deep in a list, some of `entries` stay
-- behind and are dropped when they are met.
local function leave_there()
  in_chunks('ZREM', theirs('lanes'), leaving_members)
  local is_list = not is_laned and spot ~= 'ids'
  if is_list and #leaving_places == #ids and left_out == 0 then
    redis.call('LTRIM', theirs(spot), 0, -#ids - 1)
  elseif is_list and #leaving_places > 0 then
    -- Between those that stay: a text that is no id is written over each, and all are removed in one pass.
    local mark = string.format('%s %.0f', none, now)
    for _, place in ipairs(leaving_places) do
      redis.call('LSET', theirs(spot), -left_out - place, mark)
    end
    redis.call('LREM', theirs(spot), -#leaving_places, mark)
  end
  for _, id in ipairs(spot == 'ids' and waiting or {}) do
    for _, list in ipairs({ theirs('queue'), theirs('held') }) do
      if redis.call('LPOS', list, id, 'MAXLEN', 256) then
        redis.call('LREM', list, 1, id)
      elseif redis.call('LPOS', list, id, 'RANK', -1, 'MAXLEN', 256) then
        redis.call('LREM', list, -1, id)
      end
    end
  end
  local keys = {}
  for i, id in ipairs(moving) do
    keys[2 * i - 1], keys[2 * i] = theirs('lease:') .. id, theirs('leased_by_session:') .. id
  end
  in_chunks('ZREM', theirs('scheduled'), moving)
  in_chunks('HDEL', theirs('ledger'), moving)
  for _, id in ipairs(moving) do
    drop_tags(id, text_of[id], redis.pcall('HGET', theirs('dead:') .. id, 'options'), theirs('tags'))
    leave_unstarted(id, text_of[id], theirs('unstarted'))
  end
  in_chunks('HDEL', theirs('options'), moving)
  in_chunks('HDEL', theirs('errors'), moving)
  in_chunks('HDEL', theirs('progress'), moving)
  in_chunks('UNLINK', nil, keys)
  if is_controlled then
    -- The last item of a lane may have left. No session is woken: that would move an item
    -- to where this walk was already.
    local arguments = arguments_at(source, { 'index', '0', '1' })
    call_fsck_lanes(keys_at(source, keys_of_fsck_lanes), arguments)
  end
end

local earlier = find_earlier(moving)
local is_new = redis.call('EXISTS', fence, ledger, prefix .. ':dead') == 0
if any_options() or next(text_of) then write_options(moving, text_of, started) end
enter_waiting(waiting, false)
enter_scheduled(delayed)
if earlier then forget_earlier(moving, earlier) end
note_errors(notes)
-- Where leases are recorded and there is no counter, tokens would continue from the time: see `read_fence`.
if is_new and attempts[1] then redis.call('SET', fence, token) end
in_chunks('HSET', ledger, attempts)
for _, id in ipairs(moving) do
  redis.call('RENAMENX', theirs('item:') .. id, data_key(id))
  for _, kind in ipairs({ 'emitted', 'logged' }) do
    local key = theirs(kind) .. ':' .. id
    if keeps_chunks(text_of[id], kind) and redis.call('EXISTS', key) == 1 then
      redis.call('RENAME', key, chunks_key(kind, id))
    end
  end
end
leave_there()
wake_next()
for _, id in ipairs(emitting and moving or {}) do
  emit('added', id, { size = redis.call('STRLEN', data_key(id)), due = due_at[id] })
end
flush()
if #moving > 0 then emit_elsewhere('moved', moving) end
local reply = { #ids, stayed }
for _, id in ipairs(moving) do
  reply[#reply + 1] = id
end
return reply
