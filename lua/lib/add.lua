-- Adding items: those whose id is not there yet, or, as unique, without looking.
--
-- The rows come after `items`: id, data, delay in ms (`@` and ms since 1970: at that time), unique.
--
-- Needs: items, queue
-- Gives: add_rows

-- Whether an id is in the list, near one of its ends: deeper it is not looked for, and comes a second time.
local function waits_near_an_end(id)
  return redis.call('LPOS', queue, id, 'MAXLEN', 256)
    or redis.call('LPOS', queue, id, 'RANK', -1, 'MAXLEN', 256)
end

-- Store the data; returns an answer per row, and which rows have replaced what waits. As a rule all are new
-- and one command will do.
local function store(count, before)
  local pairs_, met, plain = {}, {}, true
  for i = 1, count do
    local at = items + 4 * (i - 1)
    local id = ARGV[at + 1]
    pairs_[2 * i - 1], pairs_[2 * i] = data_key(id), ARGV[at + 2]
    plain = plain and not met[id] and not before[i] and ARGV[at + 4] ~= '1'
    met[id] = true
  end
  local all_new = plain and redis.call('MSETNX', unpack(pairs_)) == 1
  local answers, waits = {}, {}
  for i = 1, count do
    local key, data = pairs_[2 * i - 1], pairs_[2 * i]
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

-- `before`: position -> answer of the rows that are not looked at. Returns the answers (1 added, 0 already
-- there), and the ids that were added.
local function add_rows(before)
  local count = (#ARGV - items) / 4
  local answers, waits = store(count, before)
  local added, waiting, delayed, due_at = {}, {}, {}, {}
  for i = 1, count do
    if answers[i] == 1 then
      local at = items + 4 * (i - 1)
      local id, delay = ARGV[at + 1], tonumber(ARGV[at + 3])
      -- No number: a time, which is compared with the server's clock, not with the caller's.
      delay = delay or tonumber(string.sub(ARGV[at + 3], 2)) - now
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
      local at = items + 4 * (i - 1)
      if answers[i] == 1 then
        emit('added', ARGV[at + 1], { size = #ARGV[at + 2], due = due_at[i] })
      end
    end
    flush()
  end
  return answers, added
end
