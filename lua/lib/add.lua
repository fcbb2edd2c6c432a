-- Add items whose id does not exist yet, and items that are given as unique.
--
-- The rows come after `items`: id, data, delay in ms (`@` and ms since 1970: until then), unique.
--
-- Needs: items, queue
-- Gives: add_rows

-- Return whether an id is in the list near one of its ends. Deeper it is not found, and is then in the list twice.
local function waits_near_an_end(id)
  return redis.call('LPOS', queue, id, 'MAXLEN', 256)
    or redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256)
end

-- Store the data; returns an answer per row, and which rows have replaced the data of a waiting item. Usually all
-- ids are new, and one command is enough.
local function store(count, before)
  local values, seen, plain = {}, {}, true
  for i = 1, count do
    local row = items + 4 * (i - 1)
    local id = ARGV[row + 1]
    values[2 * i - 1], values[2 * i] = data_key(id), ARGV[row + 2]
    plain = plain and not seen[id] and not before[i] and ARGV[row + 4] ~= '1'
    seen[id] = true
  end
  local all_new = plain and redis.call('MSETNX', unpack(values)) == 1
  local answers, waits = {}, {}
  for i = 1, count do
    local key, data = values[2 * i - 1], values[2 * i]
    if all_new then
      answers[i] = 1
    elseif before[i] then
      answers[i] = before[i]
    else
      answers[i] = redis.call('SETNX', key, data)
      if answers[i] == 0 and ARGV[items + 4 * i] == '1' then
        redis.call('SET', key, data)
        answers[i], waits[i] = 1, waits_near_an_end(ARGV[items + 4 * i - 3])
      end
    end
  end
  return answers, waits
end

-- Add the items of all rows except those of `before`: row -> its answer. Returns the answers (1 added, 0 the id
-- exists), and the ids that were added.
local function add_rows(before)
  local count = (#ARGV - items) / 4
  local answers, waits = store(count, before)
  local added, waiting, delayed, due_at = {}, {}, {}, {}
  for i = 1, count do
    if answers[i] == 1 then
      local row = items + 4 * (i - 1)
      local id, delay = ARGV[row + 1], tonumber(ARGV[row + 3])
      -- Not a number: a time, which is compared with the server's clock and not with the caller's.
      delay = delay or tonumber(string.sub(ARGV[row + 3], 2)) - now
      added[#added + 1] = id
      if delay > 0 then
        delayed[#delayed + 1], due_at[i] = { id, delay }, now + delay
      elseif not waits[i] then
        waiting[#waiting + 1] = id
      end
    end
  end
  if #added > 0 then
    begin_incarnation(added)
    enter_waiting(waiting, false)
    enter_scheduled(delayed)
    for i = 1, emitting and count or 0 do
      local row = items + 4 * (i - 1)
      if answers[i] == 1 then
        emit('added', ARGV[row + 1], { size = #ARGV[row + 2], due = due_at[i] })
      end
    end
    flush()
  end
  return answers, added
end
