-- Find the item that stands for a key until its first run begins.
--
-- `P:unstarted` has for each key the id that was added with it last. It counts only while the options of that
-- item have the key, and the item waits or is scheduled and was never leased: so leasing writes nothing here,
-- an interruption takes no key, and an entry goes with the options.
--
-- Needs: nothing
-- Gives: unstarted_in, note_unstarted, leave_unstarted
-- Uses: unstarted_key (RARE_KEYS)

-- Return the key in options, as a text or what a read of them has returned; nil: there is none.
local function unstarted_in(text)
  if not (type(text) == 'string' and string.find(text, '"unstarted"', 1, true)) then return nil end
  local is_json, found = pcall(cjson.decode, text)
  local key = is_json and type(found) == 'table' and found.unstarted
  return type(key) == 'string' and key ~= '' and key or nil
end

local function note_unstarted(id, text)
  local key = unstarted_in(text)
  if key then redis.call('HSET', unstarted_key, key, id) end
end

-- Drop the entry of options that are removed, unless another item has the key now. `of`: the key of another
-- queue.
local function leave_unstarted(id, text, of)
  local key = unstarted_in(text)
  of = of or unstarted_key
  if key and redis.pcall('HGET', of, key) == id then redis.call('HDEL', of, key) end
end
