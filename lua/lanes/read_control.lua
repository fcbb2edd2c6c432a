-- Return the limits and pauses of a queue, one step at a time.
--
-- Keys: deadlines
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   cursor  text     "0" in the first call, then the cursor of the last reply
--   count   count    about how many fields to return
-- Reply: the next cursor ("0": done), the time in ms, how many items are leased, then field, value, …: those
--   of `set_limits`, and `paused` and `paused/<group>` (`<until in ms or inf> <since in ms> <reason>`). In
--   the first step also `shared/rate`, `shared/concurrency` and `shared/leased`. Of each group with a
--   concurrency, `leased/<group>` is how many of its items are leased.
-- Cost: O(count).
-- Limits: one HSCAN of `count` (at most 1,000) a call; a small hash is returned at once.
-- Uses: append, extend (lists), read_clock (read_clock)

local page = redis.call('HSCAN', prefix .. ':control', cursor, 'COUNT', count)
local reply = { page[1], read_clock(), redis.call('ZCARD', deadlines) }
extend(reply, page[2])
for i = 1, #page[2], 2 do
  local group = string.match(page[2][i], '^concurrency/(.*)')
  if group and group ~= '*' then
    append(reply, 'leased/' .. group, redis.call('ZCARD', prefix .. ':running:' .. group) .. '')
  end
end
local pool = cursor == '0' and redis.call('HGET', prefix .. ':control', 'shared')
if pool then
  for _, field in ipairs({ 'rate', 'concurrency' }) do
    local value = redis.call('HGET', pool .. ':limits', field)
    if value then append(reply, 'shared/' .. field, value) end
  end
  append(reply, 'shared/leased', redis.call('ZCARD', pool .. ':running') .. '')
end
return reply
