-- Find keys of a wrong type, whose errors end all scripts that use them: see `fsck_rename`. Write
-- what is missing in the keys of events again. Of a queue that is being deleted nothing is checked
-- but that: its keys are fragments.
--
-- Keys: queue, fence, idle, watchers, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   rows    rest     what follows the queue's name in a key, its type, …
-- Reply: a list of repairs: kind, name, …; and a list of the rows' keys that exist and have their type. The
--   kind `wrong_type` is no repair.
-- Cost: O(1) per row.
-- Limits: at most 1,000 rows a call.
-- Uses: COUNT_DIGITS (encodings), is_count (fence), read_clock (read_clock), repaired, repairs (repairs)

redis.call('EXISTS', queue) -- a cluster finds the node by a key of the script

local closed = redis.pcall('HEXISTS', prefix .. ':control', 'closed')
if closed == 1 then
  repaired('unfinished_deletion', prefix)
  return { repairs, {} }
end

local is_right, is_wrong, right = {}, {}, {}
for row = rows + 1, #ARGV, 2 do
  local key, wanted = prefix .. ':' .. ARGV[row], ARGV[row + 1]
  local found = redis.call('TYPE', key).ok
  is_right[key] = found == wanted
  right[#right + 1] = is_right[key] and ARGV[row] or nil
  local number = key == fence and found == 'string' and redis.call('GET', fence) or '0'
  if found ~= 'none' and not (found == wanted and is_count(number)) then
    is_wrong[key] = true
    repaired('wrong_type', ARGV[row])
  end
end

-- For how long notes are kept at least (ms), if they have no time to live.
local kept = { [idle] = 15000, [watchers] = 15000 }
for name, ms in pairs({ alarm = 60000, recent = 31 * 86400000, cancelled = 86400000 }) do
  kept[prefix .. ':' .. name] = ms
end
for key, ms in pairs(kept) do
  if is_right[key] and redis.call('PTTL', key) == -1 then
    redis.call('PEXPIRE', key, ms)
    repaired('no_time_to_live', key)
  end
end

-- Events are kept while there is the hash `events:keep`. Without one of its fields,
-- each script that emits would fail.
local keep_key = prefix .. ':events:keep'
if is_right[keep_key] or (is_right[events] and not is_wrong[keep_key]) then
  local keep = is_right[keep_key] and redis.call('HMGET', keep_key, 'last', 'count', 'age_ms') or {}
  local entry = is_right[events] and redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local last = entry and string.match(entry[1], '^%d+') or string.format('%.0f', read_clock() * 1000)
  local length = is_right[events] and redis.call('XLEN', events) or 0
  local defaults = { last, string.format('%d', math.max(length, 1000)), '0' }
  for i, field in ipairs({ 'last', 'count', 'age_ms' }) do
    if #(keep[i] or '') > COUNT_DIGITS or not string.find(keep[i] or '', '^%d+$') then
      redis.call('HSET', keep_key, field, defaults[i])
      repaired('lost_setting_of_events', field)
    end
  end
end
return { repairs, right }
