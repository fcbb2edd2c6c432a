-- Begin the incarnation of items: remove what an earlier one has left, which a foreign client has
-- completed or which is overwritten.
--
-- Needs: deadlines, scheduled, ledger, errors
-- Gives: find_earlier, forget_earlier, any_cancelled
-- Uses: cancelled_key, progress_key (RARE_KEYS), end_chunks (chunks), any_facts, option_texts (facts),
--   in_chunks, read_in_chunks (keys), drop_lease_keys, leave_leased, leave_scheduled (move), check_processing
--   (processing), any_rare (rare), note_options (slots)

-- Read before anything is written, as all keys are.
local any_cancelled = any_rare and redis.call('ZCARD', cancelled_key) > 0

-- Read what is left of earlier incarnations of ids. Call it before the first write. Returns nothing if
-- nothing is left. `no_keys`: the caller knows that there are none.
local function find_earlier(ids, no_keys)
  local scores = read_in_chunks('ZMSCORE', deadlines, ids)
  local due = any_rare and read_in_chunks('ZMSCORE', scheduled, ids) or {}
  local records = read_in_chunks('HMGET', ledger, ids)
  local any = not no_keys or any_cancelled or (any_facts and redis.call('EXISTS', errors, progress_key) > 0)
  for i = 1, #ids do
    any = any or scores[i] or due[i] or records[i]
  end
  if not any then return nil end
  local earlier = { leased = {}, delayed = {}, recorded = {} }
  for i, id in ipairs(ids) do
    earlier.leased[#earlier.leased + 1] = scores[i] and id or nil
    earlier.delayed[#earlier.delayed + 1] = due[i] and id or nil
    earlier.recorded[#earlier.recorded + 1] = records[i] and id or nil
  end
  if #earlier.leased > 0 then
    check_processing()
    note_options(earlier.leased)
  end
  earlier.texts = #earlier.recorded > 0 and option_texts(earlier.recorded) or {}
  return earlier
end

-- Remove it, if there is any. Call it after `write_options` and `enter_…` and before the data is stored:
-- until then new ids are ghosts.
local function forget_earlier(ids, earlier)
  leave_scheduled(earlier.delayed)
  in_chunks('HDEL', ledger, earlier.recorded)
  for i, text in ipairs(earlier.texts) do
    end_chunks(earlier.recorded[i], text, true)
  end
  if any_facts then
    -- `write_options` has replaced their options.
    in_chunks('HDEL', errors, ids)
    in_chunks('HDEL', progress_key, ids)
  end
  if any_cancelled then in_chunks('ZREM', cancelled_key, ids) end
  leave_leased(earlier.leased)
  drop_lease_keys(ids)
end
