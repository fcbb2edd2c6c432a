-- Add items: those whose id is not there yet, or, as unique, without looking.
--
-- Keys:
--   queue       list    ids that wait
--   processing  list    ids under lease
--   gone        set     completed ids still to be swept out of `processing`
--   deadlines   zset    id -> end of its lease
--   scheduled   zset    id -> due time
--   ledger      hash    id -> leases and deliveries of this incarnation
--   events      stream  what became of items, if that is kept
-- Arguments:
--   prefix      text      the queue's name
--   now_ms      integer   the time, or empty for the server's
--   items       rest      id, data, delay in ms (0: ready at once; `@` and ms since 1970: at that time), unique (1: do not look), …
-- Reply: a list, an entry per item: 1 added, 0 already there.
-- Cost: O(1) per item, plus O(log n) for a delayed one.
-- Limits: at most 1,000 items and, but for a single item, 1 MiB of data a call.

-- @include check
-- @include tell
-- @include clock
-- @include keys
-- @include foreign
-- @include processing
-- @include move
-- @include admit
-- @include due
-- @include schedule

-- Store the data; returns an answer per item. As a rule all are new and one command will do.
local function store(count)
  local pairs_, met, plain = {}, {}, true
  for i = 1, count do
    local at = items + 4 * (i - 1)
    local id = ARGV[at + 1]
    pairs_[2 * i - 1], pairs_[2 * i] = data_key(id), ARGV[at + 2]
    plain = plain and not met[id] and ARGV[at + 4] ~= '1'
    met[id] = true
  end
  local all_new = plain and redis.call('MSETNX', unpack(pairs_)) == 1
  local answers = {}
  for i = 1, count do
    local key, data = pairs_[2 * i - 1], pairs_[2 * i]
    if all_new then
      answers[i] = 1
    elseif ARGV[items + 4 * i] == '1' then
      redis.call('SET', key, data)
      answers[i] = 1
    else
      answers[i] = redis.call('SETNX', key, data)
    end
  end
  return answers
end

local count = (#ARGV - items) / 4
local answers = store(count)
local added, ready, delayed, due_at = {}, {}, {}, {}
for i = 1, count do
  if answers[i] == 1 then
    local at = items + 4 * (i - 1)
    local id, delay = ARGV[at + 1], tonumber(ARGV[at + 3])
    -- No number: a time, which is compared with the server's clock, not with the caller's.
    delay = delay or tonumber(string.sub(ARGV[at + 3], 2)) - now
    added[#added + 1] = id
    if delay > 0 then
      delayed[#delayed + 1], due_at[i] = { id, delay }, now + delay
    else
      ready[#ready + 1] = id
    end
  end
end
if #added == 0 then
  return answers
end

admit(added)
enter_ready(ready, false)
enter_scheduled(delayed)
for i = 1, telling and count or 0 do
  local at = items + 4 * (i - 1)
  if answers[i] == 1 then
    tell('added', ARGV[at + 1], { size = #ARGV[at + 2], due = due_at[i] })
  end
end
told()
return answers
