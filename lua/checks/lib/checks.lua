-- Read part of the entries of a key, to check them.
--
-- Needs: ledger, cursor, count
-- Gives: page_of, next_page, has_data, forget_items
-- Uses: emit_all (emit), forget_facts (facts), data_key, in_chunks (keys), paired (lists), repaired_all
--   (repairs)

local next_cursor = '0'

-- Return a page of entries of a key: their names and values.
local function page_of(scan, key)
  local page = redis.call(scan, key, cursor, 'COUNT', count)
  local names, values = paired(page[2])
  next_cursor = page[1]
  return names, values
end

-- Return the cursor after the page.
local function next_page() return next_cursor end

local function has_data(id) return redis.call('EXISTS', data_key(id)) == 1 end

-- Forget the items of entries without data, which a client of another library has completed.
local function forget_items(kind, ids)
  forget_facts(ids)
  in_chunks('HDEL', ledger, ids)
  emit_all('vanished', ids)
  repaired_all(kind, ids)
end
