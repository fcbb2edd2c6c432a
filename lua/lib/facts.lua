-- Read and forget the facts that an item carries beyond its data: its options, and its last error.
--
-- Needs: options, errors
-- Gives: any_facts, forget_facts, note_errors, errors_of

local any_facts = any_rare and redis.call('EXISTS', options, errors) > 0
if any_facts then
  -- Read before anything is written, as all keys are.
  redis.call('HLEN', options)
  redis.call('HLEN', errors)
end

local function forget_facts(ids)
  if any_facts then
    in_chunks('HDEL', options, ids)
    in_chunks('HDEL', errors, ids)
  end
end

-- Keep the last errors of items: id, error, …
local function note_errors(pairs_)
  in_chunks('HSET', errors, pairs_)
end

-- Return the last error of each item, or false.
local function errors_of(ids)
  return any_facts and read_in_chunks('HMGET', errors, ids) or {}
end
