-- Change the level of an item that waits or is scheduled: it waits behind all others of that level and
-- its group.
--
-- An item that has the level already keeps its place.
--
-- Keys: queue, gone, deadlines, scheduled, ledger, options, errors
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   item    text     its id
--   new_level integer the new level, -9 to 9
-- Reply: 1 it has the level now, 0 it is leased or there is none.
-- Cost: O(log n), and O(256) in a list.
-- Limits: one item a call.
-- Uses: closed_error, is_closed (closed), option_texts, options_text, read_options, write_options (facts),
--   foreign_lease_left (foreign), data_key (keys), drop_lease_keys (move), wake_next (slots), enter_waiting,
--   find_waiting, leave_places (waiting)

if is_closed then return closed_error() end
redis.call('LLEN', queue)
if
  redis.call('EXISTS', data_key(item)) == 0
  or redis.call('ZSCORE', deadlines, item)
  or foreign_lease_left(item)
then
  return 0
end
local its_options = read_options(option_texts({ item })[1])
if (its_options.level or 0) == new_level then return 1 end
local places = find_waiting({ item }) -- none if it is scheduled
its_options.level = new_level ~= 0 and new_level or nil
local started = redis.call('HEXISTS', ledger, item) == 1 and { [item] = true }
-- First: an id that leasing meets in a lane which its options do not name is put into the right one.
write_options({ item }, { [item] = options_text(its_options) }, started)
if not redis.call('ZSCORE', scheduled, item) then
  enter_waiting({ item }, false)
  leave_places(places)
  drop_lease_keys({ item }) -- if it waits in no lane now
  wake_next()
end
return 1
