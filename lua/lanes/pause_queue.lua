-- Pause a queue or a group, or resume it: while it is paused, none of its items is leased.
--
-- Leases that have begun are not ended. A pause that has ended by its time is removed when an item is leased.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   of_group text    the group; empty: the whole queue
--   until_ms text    until when, in ms since 1970; `+` and so many ms from now; `inf`:
--       until it is resumed; empty: resume
--   reason  text     why; at most 1,000 bytes
-- Reply: 1 if it was paused or resumed, 0 if there was no pause to end, -1 if the time has passed, and
--   nothing was done; the time in ms; until when it is paused, in ms (-1: without end, or it is resumed).
-- Cost: O(log n).
-- Limits: none.
-- Uses: control_key, held_key (RARE_KEYS), limits_changed (control), emit, emitting, flush (emit), read_clock
--   (read_clock)

redis.call('LLEN', queue)
redis.call('LLEN', held_key)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', scheduled)

local field = of_group == '' and 'paused' or 'paused/' .. of_group
local done = 1
local ends, mark = until_ms, ''
if string.sub(until_ms, 1, 1) == '+' then
  ends = string.format('%.0f', read_clock() + tonumber(until_ms))
  mark = '0' -- see `right_pause`
end
local last = ends ~= 'inf' and tonumber(ends) or -1
if last >= 0 and last <= read_clock() then return { -1, read_clock(), -1 } end
if until_ms ~= '' then
  local since = mark .. string.format('%.0f', read_clock())
  redis.call('HSET', control_key, field, ends .. ' ' .. since .. ' ' .. string.sub(reason, 1, 1000))
else
  local before = string.match(redis.call('HGET', control_key, field) or '0', '^%S+')
  redis.call('HDEL', control_key, field)
  done = (before == 'inf' or tonumber(before) > read_clock()) and 1 or 0
end
limits_changed(of_group ~= '' and of_group)
if emitting and done == 1 then
  local details = { group = of_group ~= '' and of_group or nil, reason = reason ~= '' and reason or nil }
  if until_ms ~= '' then
    details['until'] = last >= 0 and last or nil
    emit('paused', '', { details = details })
  else
    emit('resumed', '', { details = details })
  end
end
flush()
return { done, read_clock(), last }
