-- Pause a queue or a group, or resume it: while it is paused, none of its items is leased.
--
-- Leases that have begun are not ended. A pause that has ended by its time is removed when an item is leased.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   of_group text    the group; empty: the whole queue
--   until_ms text    until when, in ms since 1970; `inf`: until it is resumed; empty: resume
--   reason  text     why; at most 1,000 bytes
-- Reply: 1 if it was paused or resumed, 0 if there was no pause to end.
-- Cost: O(log n).
-- Limits: none.

redis.call('LLEN', queue)
redis.call('LLEN', held_key)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', scheduled)

local field = of_group == '' and 'paused' or 'paused/' .. of_group
local done
if until_ms ~= '' then
  local since = string.format('%.0f', read_clock())
  redis.call(
    'HSET',
    control_key,
    field,
    until_ms .. ' ' .. since .. ' ' .. string.sub(reason, 1, 1000)
  )
  done = 1
else
  done = redis.call('HDEL', control_key, field)
end
limits_changed(of_group ~= '' and of_group)
if emitting and done == 1 then
  local details =
    { group = of_group ~= '' and of_group or nil, reason = reason ~= '' and reason or nil }
  if until_ms ~= '' then
    emit('paused', '', { due = until_ms ~= 'inf' and until_ms, details = details })
  else
    emit('resumed', '', { details = details })
  end
end
flush()
return done
