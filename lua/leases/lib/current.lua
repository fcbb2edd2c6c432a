-- Check who holds an item now. Scripts that only the current holder may call ask here.
--
-- Needs: nothing
-- Gives: is_current, accepts_token
-- Uses: now (clock), foreign_lease_left, is_ours (foreign), data_key (keys), read_ledger (ledger)

-- Return whether a token is that of the current holder. `score` and `record`: the item's entries in
-- `deadlines` and in the ledger.
local function is_current(id, token, score, record)
  local _, last = read_ledger(record)
  return is_ours(score)
    and token == last
    -- When our lease has expired, a foreign client may hold the item before a
    -- script of ours has reclaimed it.
    and (tonumber(score) > now or not foreign_lease_left(id))
    and redis.call('EXISTS', data_key(id)) == 1
end

-- Return whether a token (a text) is one of the item's incarnation or, if `fenced`, that of the current
-- holder. `none_foreign`: `are_leases_ours` has said so.
local function accepts_token(id, token, fenced, record, score, none_foreign)
  token = tonumber(token)
  -- Reading the rest of the record would cost a µs.
  local first, last = string.match(record or '', '^(%d+) (%d+)')
  first, last = tonumber(first), tonumber(last)
  if not (first and token >= first and token <= last) then return false end
  return not fenced or (is_ours(score) and token == last and (none_foreign or not foreign_lease_left(id)))
end
