-- Keep the sets by which flow runs are listed and found: by their state, and by values of their attributes.
--
-- A run is a table here: `home` (the prefix of its home queue), `id`, `flow` (a text, may be empty),
-- `lookup` (JSON: a list of [attribute, list of texts]; or false), `at` (when it enters its state,
-- in ms). One that has ended also has `state`, and `expires`: when its hash does, in ms; nil while
-- some of its parts are unfinished.
--
-- `<home>:runs:<state>` has the ids and when they entered the state. `<home>:runs:ends` and each look-up,
-- `<home>:runs:by:<flow>\0<attribute>\0<value>`, have the ids and when their hash expires, infinity before
-- that is known. Each step that adds an id forgets up to four whose time is over, so that no set grows for
-- ever; one without an unfinished run has a time to live. All functions may be repeated.
--
-- Needs: nothing
-- Gives: check_index, lookups_of, index_started, index_ended, index_deleted
-- Uses: BY_CUT (encodings), in_chunks (keys), read_clock (read_clock)

local final_states = { 'completed', 'failed', 'cancelled' }

-- Return the keys of a run's look-ups, each once.
local function lookups_of(flow_run)
  local is_json, found = pcall(cjson.decode, flow_run.lookup or '[]')
  local keys, seen = {}, {}
  for _, one in ipairs(is_json and type(found) == 'table' and found or {}) do
    local name, values = unpack(type(one) == 'table' and one or {})
    -- What another client has written and is no look-up is none.
    for _, value in ipairs(type(name) == 'string' and type(values) == 'table' and values or {}) do
      -- stylua: ignore
      local key = flow_run.home .. ':runs:by:' .. flow_run.flow .. BY_CUT .. name .. BY_CUT .. tostring(value)
      if not seen[key] then
        keys[#keys + 1], seen[key] = key, true
      end
    end
  end
  return keys
end

-- What this script has found: the homes whose keys were read, and the sets with nothing that is over.
local checked_homes, none_over = {}, {}

-- Read the type of each key that the other functions write: call it before the first write.
local function check_index(flow_run)
  local base = flow_run.home .. ':runs:'
  if not checked_homes[base] then
    checked_homes[base] = true
    redis.call('ZCARD', base .. 'active')
    redis.call('ZCARD', base .. 'ends')
    for _, state in ipairs(final_states) do
      redis.call('ZCARD', base .. state)
    end
  end
  for _, key in ipairs(lookups_of(flow_run)) do
    redis.call('ZCARD', key)
  end
end

-- Return up to four ids of a set whose time is over. Who calls it removes them.
local function over_in(key)
  local ids = none_over[key] and {} or redis.call('ZRANGEBYSCORE', key, '-inf', read_clock(), 'LIMIT', 0, 4)
  none_over[key] = #ids < 4
  return ids
end

-- Return for how many ms from now on a set is needed; nil: it has an unfinished run, or no entry.
local function needed_for(key)
  local last = redis.call('ZRANGE', key, 0, 0, 'REV', 'WITHSCORES')
  local until_ = tonumber(last[2])
  return until_ and until_ < math.huge and math.max(1, until_ - read_clock()) or nil
end

-- Write until when a run exists into a set (nil: unknown), or remove it from there. While one is
-- unfinished, the set has no time to live; else this is returned, in ms.
local function note_expiry(key, id, expires, removed)
  in_chunks('ZREM', key, over_in(key))
  if removed then
    redis.call('ZREM', key, id)
  else
    if not expires then redis.call('PERSIST', key) end
    redis.call('ZADD', key, expires or '+inf', id)
  end
  local left = needed_for(key)
  if left then redis.call('PEXPIRE', key, left) end
  return left
end

-- Forget runs whose time is over in the sets of the final states.
local function forget_over(base)
  local ids = over_in(base .. 'ends')
  for _, state in ipairs(final_states) do
    in_chunks('ZREM', base .. state, ids)
  end
  in_chunks('ZREM', base .. 'ends', ids)
end

-- Let the sets of the final states expire with `ends`, in so many ms. Without a time they have none already,
-- since the first of the unfinished runs was noted: see `keep_states`.
local function expire_states(base, left)
  for _, state in ipairs(left and final_states or {}) do
    redis.call('PEXPIRE', base .. state, left)
  end
end

-- Let the sets of the final states not expire, before an unfinished run is noted in `ends`: by that, an
-- interrupted call that is repeated finds out that they would.
local function keep_states(base)
  local would_expire = redis.call('PTTL', base .. 'ends') >= 0
  for _, state in ipairs(would_expire and final_states or {}) do
    redis.call('PERSIST', base .. state)
  end
end

-- List and find a run that is started, or that is active again.
local function index_started(flow_run)
  local base = flow_run.home .. ':runs:'
  forget_over(base)
  local before = redis.call('ZSCORE', base .. 'ends', flow_run.id)
  redis.call('ZADD', base .. 'active', flow_run.at, flow_run.id)
  keep_states(base)
  note_expiry(base .. 'ends', flow_run.id)
  for _, key in ipairs(lookups_of(flow_run)) do
    note_expiry(key, flow_run.id)
  end
  for _, state in ipairs(before and final_states or {}) do
    redis.call('ZREM', base .. state, flow_run.id)
  end
end

-- List a run under its final state and, once it is known, note until when it is found.
local function index_ended(flow_run)
  local base = flow_run.home .. ':runs:'
  forget_over(base)
  redis.call('ZADD', base .. flow_run.state, flow_run.at, flow_run.id)
  if not flow_run.expires then keep_states(base) end
  expire_states(base, note_expiry(base .. 'ends', flow_run.id, flow_run.expires))
  for _, key in ipairs(lookups_of(flow_run)) do
    note_expiry(key, flow_run.id, flow_run.expires)
  end
  redis.call('ZREM', base .. 'active', flow_run.id)
  for _, state in ipairs(final_states) do
    if state ~= flow_run.state then redis.call('ZREM', base .. state, flow_run.id) end
  end
end

-- Forget a run that is deleted. `never_ended`: it was listed under no final state.
local function index_deleted(flow_run, never_ended)
  local base = flow_run.home .. ':runs:'
  for _, key in ipairs(lookups_of(flow_run)) do
    note_expiry(key, flow_run.id, nil, true)
  end
  redis.call('ZREM', base .. 'active', flow_run.id)
  for _, state in ipairs(never_ended and {} or final_states) do
    redis.call('ZREM', base .. state, flow_run.id)
  end
  expire_states(base, note_expiry(base .. 'ends', flow_run.id, nil, true))
end
