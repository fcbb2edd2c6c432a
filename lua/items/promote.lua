-- End the delay of a scheduled item: it waits from now on, before all others of its level.
--
-- Keys: queue, gone, deadlines, scheduled, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   item    text     its id
-- Reply: 1 it waits now, 0 it is not scheduled.
-- Cost: O(log n).
-- Limits: one item a call.
-- Uses: closed_error, is_closed (closed), emit_all, flush (emit), foreign_lease_left (foreign), data_key
--   (keys), drop_lease_keys (move), wake_next (slots), enter_waiting (waiting)

if is_closed then return closed_error() end
redis.call('LLEN', queue)
if
  not redis.call('ZSCORE', scheduled, item)
  or redis.call('ZSCORE', deadlines, item)
  or foreign_lease_left(item)
  or redis.call('EXISTS', data_key(item)) == 0
then
  return 0
end
enter_waiting({ item }, true)
redis.call('ZREM', scheduled, item)
drop_lease_keys({ item })
wake_next()
emit_all('due', { item }, '1')
flush()
return 1
