-- Find out from the lease keys of an item what an entry has said that is lost or wrong.
--
-- Needs: ledger
-- Gives: lease_key_left, rederive_lease
-- Uses: LOST, LOST_SIZE, OURS, OURS_SIZE, SCHEDULED (encodings), lease_keys_of, place_in (keys), read_ledger
--   (ledger)

-- Return in how many ms a lease key of an item expires whose value is `value` (0: it does not), or, without
-- one, which names a session; nil: there is none. A value that is reserved names no session.
local function lease_key_left(id, value)
  for _, key in ipairs(lease_keys_of({ id })) do
    local holder = redis.pcall('GET', key)
    local is_text = type(holder) == 'string'
    local is_session = is_text
      and string.sub(holder, 1, OURS_SIZE) == OURS
      and holder ~= SCHEDULED
      and not place_in(holder)
      and string.sub(holder, 1, LOST_SIZE) ~= LOST
    if is_text and (holder == value or (not value and is_session)) then
      return math.max(redis.call('PTTL', key), 0)
    end
  end
end

-- Return in how many ms the lease of ours expires that an entry of `deadlines`
-- should show; nil: there is none.
local function rederive_lease(id)
  local left = lease_key_left(id)
  return left and left > 0 and read_ledger(redis.call('HGET', ledger, id)) and left
end
