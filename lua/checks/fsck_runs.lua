-- Check part of the flow runs against the sets by which they are listed and found,
-- and repair what does not agree.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the home queue's name
--   now_ms   integer  the time; empty: the server's time
--   which    text     a set, by what follows the queue's name: the runs in it;
--       empty: the runs that have a hash
--   pattern  text     without a set: a glob that matches the keys of the home queue that begin with `run`
--   cursor   text     "0" in the first call, then the cursor of the last reply
--   count    count    about how many runs, or keys of the database, to check
-- Reply: the next cursor ("0": done); a list of repairs: kind, id or name, …; without a set, the names of the
--   sets. The kind `wrong_type` is no repair.
-- Cost: O(count log n).
-- Limits: one scan of `count` (at most 1,000) a call; a small set is checked at once.
-- Uses: now (clock), TOKEN_LIMIT (encodings), in_chunks (keys), repaired, repairs (repairs), check_index,
--   index_ended, index_started, lookups_of (run_index)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script

local states = { 'active', 'completed', 'failed', 'cancelled' }
local place_of_state = { active = 1, completed = 2, failed = 3, cancelled = 4 }

-- Return a run as its hash says, and whether it is unfinished; nil: it has no hash, or one that is being
-- written. One whose state or numbers another client has overwritten has failed.
local read_run
function read_run(id)
  local key, wrong = prefix .. ':run:' .. id, nil
  local function number_in(text, default)
    local number = tonumber(text or default)
    wrong = wrong or not (number and number >= 0 and number < TOKEN_LIMIT)
    return wrong and default or number
  end
  -- stylua: ignore
  local facts = redis.call('HMGET', key, 'state', 'active', 'flow', 'lookup', 'created', 'ended', 'keep')
  if not facts[1] then return nil end
  local is_unfinished = facts[1] == 'active' or number_in(facts[2], 0) > 0
  local ended = number_in(facts[6] or facts[5], now)
  local flow_run = {
    home = prefix,
    id = id,
    state = facts[1],
    flow = facts[3] or '',
    lookup = facts[4],
    at = facts[1] == 'active' and number_in(facts[5], now) or ended,
    expires = not is_unfinished and ended + math.max(1, number_in(facts[7], 0)) or nil,
  }
  if wrong or not place_of_state[facts[1]] then
    repaired('unreadable_run', id)
    redis.call('HSET', key, 'state', 'failed', 'error', 'its state or a number in it could not be read')
    redis.call('HSET', key, 'active', 0, 'created', now, 'ended', now, 'keep', 86400000)
    return read_run(id)
  end
  return flow_run, is_unfinished
end

-- Return whether a run is in the sets where it should be, and in no other.
local function is_listed(flow_run)
  local id, right = flow_run.id, true
  for _, state in ipairs(states) do
    local score = redis.call('ZSCORE', prefix .. ':runs:' .. state, id)
    right = right and (score ~= false) == (state == flow_run.state)
  end
  for _, key in ipairs({ prefix .. ':runs:ends', unpack(lookups_of(flow_run)) }) do
    local score = redis.call('ZSCORE', key, id)
    right = right and score and (tonumber(score) == math.huge) == not flow_run.expires
  end
  return right
end

-- Check the time to live of a run's hash, and the sets where the run should be.
local function check_run(id)
  local flow_run, is_unfinished = read_run(id)
  if not flow_run then return false end
  local key = prefix .. ':run:' .. id
  local left = redis.call('PTTL', key)
  if is_unfinished and left >= 0 then
    redis.call('PERSIST', key)
    repaired('expiring_run', id)
  elseif not is_unfinished and left == -1 then
    redis.call('PEXPIRE', key, math.max(60000, flow_run.expires - now))
    repaired('no_time_to_live', key)
  end
  if not is_listed(flow_run) then
    check_index(flow_run)
    if flow_run.state == 'active' then
      index_started(flow_run)
    else
      index_ended(flow_run)
    end
    repaired('unlisted_run', id)
  end
  return true
end

-- Return whether a run has a look-up, a set, which an interrupted start of another
-- run of its id may have written.
local function has_lookup(id, set)
  for _, key in ipairs(lookups_of(read_run(id))) do
    if key == set then return true end
  end
  return false
end

if which == '' then
  local page, names = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', count), {}
  for _, key in ipairs(page[2]) do
    local family, name = string.match(string.sub(key, #prefix + 2), '^(runs?):(.*)$')
    local kind = family and redis.call('TYPE', key).ok
    if kind == 'hash' and family == 'run' then
      check_run(name)
    elseif kind == 'zset' and family == 'runs' then
      names[#names + 1] = 'runs:' .. name
    elseif family and name ~= 'ends' then -- which `fsck_types` checks
      repaired('wrong_type', family .. ':' .. name)
    end
  end
  return { page[1], repairs, names }
end

local key = prefix .. ':' .. which
local page, dropped = redis.call('ZSCAN', key, cursor, 'COUNT', count), {}
for i = 1, #page[2], 2 do
  local id = page[2][i]
  if not check_run(id) then
    dropped[#dropped + 1] = id
    -- Those of runs that have expired stay for a while.
    if tonumber(redis.call('ZSCORE', prefix .. ':runs:ends', id) or 0) > now then repaired('lost_run', id) end
  elseif string.sub(which, 1, 8) == 'runs:by:' and not has_lookup(id, key) then
    dropped[#dropped + 1] = id
    repaired('unlisted_run', id)
  end
end
in_chunks('ZREM', key, dropped)
return { page[1], repairs, {} }
