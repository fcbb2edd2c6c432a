-- Add items whose id does not exist yet, and items that are given as unique.
--
-- The rows come after `items`: id, data, delay in ms (`@` and ms since 1970: until then), unique.
--
-- Needs: items
-- Gives: add_rows

-- Return the ids of the rows, and how many of their data keys and lease keys exist: usually none does.
local function read_rows(count)
  local ids, keys = {}, {}
  for i = 1, count do
    ids[i] = ARGV[items + 4 * i - 3]
    keys[i] = data_key(ids[i])
  end
  for i, key in ipairs(lease_keys_of(ids)) do
    keys[count + i] = key
  end
  local exist = 0
  for from = 1, #keys, 1000 do
    exist = exist + redis.call('EXISTS', unpack(keys, from, math.min(from + 999, #keys)))
  end
  return ids, exist
end

-- Return the answer to each row that `before` has none for: 1 to add it, 0 the id exists. Also return which ids are
-- in the queue already.
local function answer_rows(ids, before, exist)
  local answers, listed, seen = {}, {}, {}
  for i, id in ipairs(ids) do
    local unique = ARGV[items + 4 * i] == '1'
    local exists = seen[id] or (exist > 0 and redis.call('EXISTS', data_key(id)) == 1)
    answers[i] = before[i] or ((unique or not exists) and 1) or 0
    if answers[i] == 1 then
      if exists and not seen[id] then
        listed[id] = waits_near_an_end(id)
      end
      seen[id] = true
    end
  end
  return answers, listed
end

-- Return where the ids that are added go. An id that is added twice goes to the place of its last row.
local function find_places(ids, answers, listed)
  local order, place_of, delay_of, due_at = {}, {}, {}, {}
  for i, id in ipairs(ids) do
    if answers[i] == 1 then
      local text = ARGV[items + 4 * i - 1]
      -- Not a number: a time, which is compared with the server's clock and not with the caller's.
      local delay = tonumber(text) or tonumber(string.sub(text, 2)) - now
      if delay > 0 or delay_of[id] or not place_of[id] then
        order[#order + 1], place_of[id] = id, #order + 1
      end
      delay_of[id] = delay > 0 and delay or nil
      due_at[i] = delay_of[id] and now + delay
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

-- Store the data of the rows that are added, which makes the items exist.
local function store(ids, answers)
  local values = {}
  for i, id in ipairs(ids) do
    if answers[i] == 1 then
      values[#values + 1], values[#values + 2] = data_key(id), ARGV[items + 4 * i - 2]
    end
  end
  in_chunks('MSET', nil, values)
end

-- Add the items of all rows except those of `before`: row -> its answer. Returns the answers (1 added, 0 the id
-- exists), and the ids that were added.
local function add_rows(before)
  local count = (#ARGV - items) / 4
  local ids, exist = read_rows(count)
  local answers, listed = answer_rows(ids, before, exist)
  local added = {}
  for i, id in ipairs(ids) do
    added[#added + 1] = answers[i] == 1 and id or nil
  end
  if #added > 0 then
    local waiting, delayed, due_at = find_places(ids, answers, listed)
    local earlier = find_earlier(added, exist == 0)
    enter_waiting(waiting, false)
    enter_scheduled(delayed)
    forget_earlier(added, earlier)
    store(ids, answers)
    for i = 1, emitting and count or 0 do
      if answers[i] == 1 then
        local row = items + 4 * (i - 1)
        emit('added', ids[i], { size = #ARGV[row + 2], due = due_at[i] })
      end
    end
    flush()
  end
  return answers, added
end
