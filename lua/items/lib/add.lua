-- Add items whose id does not exist yet, and items that are given as unique.
--
-- The rows come after `items`: id, data, delay in ms (-1: none, and it is leased next; `@` and ms since 1970:
-- until then), and how the item is added: a mode, or a mode, `:` and a JSON object. The mode is 0 to check
-- the id, 1 not to check it (unique), 2 to replace an item that waits or is scheduled. The object has the
-- options of the item (see `items/lib/facts`), or `expires_in` (ms) in place of `expires`, and `dedupe`: for
-- how many ms the id stays taken, even if the item is completed.
--
-- Needs: items, deadlines, scheduled, ledger, options
-- Gives: any_recent, add_rows
-- Uses: lanes_key, recent_key, unstarted_key (RARE_KEYS), find_earlier, forget_earlier (begin_incarnation),
--   controlled (controlled), emit, emitting (emit), PLAIN_LANE (encodings), any_options, options_text,
--   read_options, write_options (facts), foreign_lease_left (foreign), data_key, in_chunks, read_in_chunks
--   (keys), lanes (lanes), enter_scheduled (move), any_rare (rare), read_clock (read_clock), wake_next
--   (slots), unstarted_in (unstarted), enter_waiting, find_member, leave_places, waits_near_an_end (waiting)

local any_recent = any_rare and redis.call('ZCARD', recent_key) > 0

-- Return the options in the fourth value of a row if they are only the stage of a flow
-- run: these are stored as they are.
local function only_stage(how)
  local is_only = string.sub(how, 2, 9) == ':{"run":'
    and string.find(how, '"', 11, true) == #how - 1
    and string.byte(how, -1) == 125
    and string.byte(how, -3) ~= 92 -- a backslash
  return is_only and string.byte(how) < 50 and string.sub(how, 3)
end

-- Read the rows; returns their ids, the data keys with the data, how many of the keys exist that show
-- that an id is in use, whether all ids are different and to be added without a delay, and if so the
-- answers, and the options by id; and which ids are leased next (nil: none).
local function read_rows(count, before)
  local ids, values, keys, seen, plain, answers, text_of = {}, {}, {}, {}, true, {}, {}
  local first
  for i = 1, count do
    local row = items + 4 * (i - 1)
    local id = ARGV[row + 1]
    local key = data_key(id)
    ids[i], values[2 * i - 1], values[2 * i] = id, key, ARGV[row + 2]
    keys[3 * i - 2], keys[3 * i - 1] = key, prefix .. ':lease:' .. id
    keys[3 * i] = prefix .. ':leased_by_session:' .. id
    if ARGV[row + 3] == '-1' then
      first = first or {}
      first[id] = true
    else
      plain = plain and ARGV[row + 3] == '0'
    end
    plain = plain and not seen[id] and not before[i]
    if plain and #ARGV[row + 4] > 1 then
      text_of[id] = only_stage(ARGV[row + 4])
      plain = text_of[id]
    end
    seen[id], answers[i] = true, 1
  end
  local exist = 0
  for from = 1, #keys, 1000 do
    exist = exist + redis.call('EXISTS', unpack(keys, from, math.min(from + 999, #keys)))
  end
  return ids, values, exist, plain, answers, text_of, first
end

-- Put ids into the queue; those of `first` at its front.
local function enter_rows(waiting, first, unawaited)
  local front, others = {}, first and {} or waiting
  for _, id in ipairs(first and waiting or {}) do
    local part = first[id] and front or others
    part[#part + 1] = id
  end
  if front[1] then enter_waiting(front, true, unawaited) end
  if others[1] then enter_waiting(others, false, unawaited) end
end

-- Return whether any client may be working on an item.
local function is_leased(id) return redis.call('ZSCORE', deadlines, id) or foreign_lease_left(id) end

-- Return the id of another item that was added with a key, waits or is scheduled, and was not started yet.
local function waits_with(key, id)
  local other = redis.call('HGET', unstarted_key, key)
  if not other or other == id or redis.call('EXISTS', data_key(other)) == 0 or is_leased(other) then
    return nil
  end
  local found = read_options(redis.call('HGET', options, other))
  local has_expired = found.expires and found.expires <= read_clock()
  local was_leased = redis.call('HEXISTS', ledger, other) == 1
  return found.unstarted == key and not has_expired and not was_leased and other or nil
end

-- Return the answer to each row that `before` has none for: 1 to add it, 0 the id is taken, or the id of an
-- item that waits with the same key (see `items/lib/unstarted`). Also return which ids are in the queue
-- already, and which rows replace an item.
local function answer_rows(ids, before, exist)
  local answers, listed, replaced, seen, with_key = {}, {}, {}, {}, {}
  local windows = any_recent and read_in_chunks('ZMSCORE', recent_key, ids) or {}
  for i, id in ipairs(ids) do
    local mode = string.byte(ARGV[items + 4 * i]) - 48 -- 0 check, 1 unique, 2 replace
    local exists = seen[id] or (exist > 0 and redis.call('EXISTS', data_key(id)) == 1)
    local is_taken = exists or (windows[i] and tonumber(windows[i]) > read_clock())
    local replaces = mode == 2 and exists and (seen[id] or not is_leased(id))
    answers[i] = before[i] or ((mode == 1 or replaces or not is_taken) and 1) or 0
    local key = answers[i] == 1 and unstarted_in(string.sub(ARGV[items + 4 * i], 3))
    if key then
      local other = with_key[key] or waits_with(key, id)
      answers[i] = other and other ~= id and other or 1
      with_key[key] = other or id
    end
    if answers[i] == 1 then
      replaced[i] = replaces
      if exists and not seen[id] then
        -- An item that is replaced waits somewhere, unless it is scheduled.
        listed[id] = replaces and not redis.call('ZSCORE', scheduled, id)
          or waits_near_an_end(id)
          or (controlled and find_member(id))
      end
      seen[id] = true
    end
  end
  return answers, listed, replaced
end

-- Read the options of the rows that are added: a text for each id that has some,
-- and for how long an id is taken.
local function read_row_options(ids, answers)
  local text_of, window_of = {}, {}
  for i, id in ipairs(ids) do
    if answers[i] == 1 then
      local row = string.sub(ARGV[items + 4 * i], 3)
      text_of[id], window_of[id] = nil, nil
      if row ~= '' then
        local sent = cjson.decode(row)
        if sent.expires_in then sent.expires = read_clock() + sent.expires_in end
        window_of[id] = sent.dedupe
        text_of[id] = options_text({
          level = sent.level,
          group = sent.group,
          tags = sent.tags,
          weight = sent.weight,
          unstarted = sent.unstarted,
          expires = sent.expires,
          trace = sent.trace,
          run = sent.run,
        })
      end
    end
  end
  return text_of, window_of
end

-- Note until when ids stay taken, and drop as many old notes.
local function note_recent(window_of)
  local notes, longest, count = {}, 0, 0
  for id, window in pairs(window_of) do
    notes[#notes + 1], notes[#notes + 2] = read_clock() + window, id
    longest, count = math.max(longest, window), count + 1
  end
  local old = redis.call('ZRANGEBYSCORE', recent_key, '-inf', read_clock(), 'LIMIT', 0, 2 * count)
  in_chunks('ZREM', recent_key, old) -- first: a window may begin again
  in_chunks('ZADD', recent_key, notes)
  if redis.call('PTTL', recent_key) < longest then redis.call('PEXPIRE', recent_key, longest) end
end

-- Return where the ids that are added go. An id that is added twice goes to the place of its last row.
local function find_places(ids, answers, listed)
  local order, place_of, delay_of, due_at = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if answers[i] == 1 then
      local text = ARGV[items + 4 * i - 1]
      -- Not a number: a time, which is compared with the server's clock and not with the caller's.
      local delay = tonumber(text) or tonumber(string.sub(text, 2)) - read_clock()
      if delay > 0 or delay_of[id] or not place_of[id] then
        order[#order + 1], place_of[id] = id, #order + 1
      end
      delay_of[id] = delay > 0 and delay or nil
      due_at[i] = delay_of[id] and read_clock() + delay
    end
  end
  local waiting, delayed = {}, {}
  for place, id in ipairs(order) do
    if place_of[id] == place and delay_of[id] then
      delayed[#delayed + 1] = { id, delay_of[id] }
    elseif place_of[id] == place and not listed[id] then
      waiting[#waiting + 1] = id
    end
  end
  return waiting, delayed, due_at
end

-- Return the members of lanes by which ids are listed, and the places in a list that ids leave, unless they
-- are deep in it. Those whose options say another lane now are listed no longer, so that they enter it.
local function find_members(listed, text_of)
  local members, left = {}, {}
  for id in pairs(listed) do
    local name = text_of[id] and lanes().lane_of(read_options(text_of[id])) or PLAIN_LANE
    members[id] = controlled and find_member(id) or nil
    if members[id] and lanes().split_member(members[id]) ~= name then
      listed[id] = nil
    elseif not members[id] and name ~= PLAIN_LANE and waits_near_an_end(id) then
      listed[id], left[#left + 1] = nil, { id, waits_near_an_end(id) }
    end
  end
  return members, left
end

-- Add the members that are left, of ids that are not listed any more, or delayed.
-- The others keep their lease keys.
local function find_left(members, listed, delayed, left)
  for _, item in ipairs(delayed) do
    listed[item[1]] = nil
  end
  for id, member in pairs(members) do
    if listed[id] then
      lanes().kept_keys[id] = true
    else
      left[#left + 1] = { id, lanes_key, member }
    end
  end
end

-- Return where each row goes: its answer, the ids that are added, the data to store, the ids that wait and
-- those that are delayed from now on, and when these fall due; then the options and the windows of ids, the
-- rows that replace an item, and the places that are left.
local function place_rows(ids, values, before, exist)
  local answers, listed, replaced = answer_rows(ids, before, exist)
  local text_of, window_of = read_row_options(ids, answers)
  local added, stored = {}, {}
  for i, id in ipairs(ids) do
    if answers[i] == 1 then
      added[#added + 1] = id
      stored[#stored + 1], stored[#stored + 2] = values[2 * i - 1], values[2 * i]
    end
  end
  local members, left = find_members(listed, text_of)
  local waiting, delayed, due_at = find_places(ids, answers, listed)
  find_left(members, listed, delayed, left)
  return answers, added, stored, waiting, delayed, due_at, text_of, window_of, replaced, left
end

-- Add the items of all rows except those of `before`: row -> its answer. Returns the answers (1 added, 0
-- the id exists), the ids that were added, and those of them that wait. Call `flush` after it. Usually all
-- rows are plain and all ids new. `unawaited`: see `enter_waiting`.
local function add_rows(before, unawaited)
  local count = (#ARGV - items) / 4
  local ids, values, exist, plain, answers, text_of, first = read_rows(count, before)
  local added, stored, waiting, later, due_at = ids, values, ids, nil, nil
  local window_of, replaced, left = nil, {}, {}
  if not plain or exist > 0 or any_recent then
    answers, added, stored, waiting, later, due_at, text_of, window_of, replaced, left =
      place_rows(ids, values, before, exist)
  end
  if #added > 0 then
    local earlier = find_earlier(added, exist == 0)
    if any_options() or next(text_of) then write_options(added, text_of) end
    enter_rows(waiting, first, unawaited)
    if later and later[1] then enter_scheduled(later) end
    if earlier then forget_earlier(added, earlier) end
    in_chunks('MSET', nil, stored) -- makes the items exist
    leave_places(left)
    wake_next()
    if window_of and next(window_of) then note_recent(window_of) end
    for i = 1, emitting and count or 0 do
      if answers[i] == 1 then
        local fields = { size = #values[2 * i], due = due_at and due_at[i] }
        if replaced[i] then
          emit('replaced', ids[i], fields)
        else
          emit('added', ids[i], fields)
        end
      end
    end
  end
  return answers, added, waiting
end
