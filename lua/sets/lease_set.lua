-- Lease waiting items into a set that can be read again by its name, or find that set.
--
-- Repeating a call whose reply was lost leases nothing twice: items are added only while the set has as many
-- as the caller knows of.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, sessions, options, errors, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time; empty: the server's time
--   session       text     the holder: the value of the lease keys
--   set_many      flag     1: the server has MSETEX and permits it, see `probe`
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   stream        text     the name of the stream
--   reader        text     the reader of the stream
--   set           text     the name of the set
--   known         integer  how many items the set has, as far as the caller knows
--   count         count    the maximum number of items to add
--   hold_ms       integer  the lease time
--   keep_ms       integer  how long the set is kept from now on
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); how many items the set had, and
--   has now; 1 if there may be more to lease or to reclaim, else 0; how many ids wait.
-- Cost: O(log n) per item leased or reclaimed, O(1) per ghost or double.
-- Limits: 1,000 items leased, 500 reclaimed, 2,000 ids checked a call.
-- Uses: begin_writes (begin_writes), now (clock), is_closed (closed), controlled (controlled), count_waiting
--   (count), flush (emit), in_chunks (keys), begin_leases, choose, chosen, drop_checked, last_token,
--   take_tokens, unreadable, unreadable_error, write_leases (lease), lease_lanes (lease_lanes), can_reclaim,
--   reclaim (reclaim), is_stream_owner (stream_owner)

local set_key = prefix .. ':set:' .. set
local had = redis.call('LLEN', set_key)
if not is_stream_owner() then
  return { 0, had, had, 0, 0 }
elseif is_closed then
  return { 1, had, had, 0, 0 }
end

local more = false
if can_reclaim then more = reclaim(500) end
if had == known and count > 0 then
  local checked, used = 0, 1
  local in_lanes = controlled and lease_lanes().begin()
  if in_lanes then lease_lanes().choose_in_lanes(count, false, math.huge) end
  while not in_lanes and used > 0 and #chosen < count and checked < 2000 do
    used = choose(queue, checked, math.min(count - #chosen, 500), false, math.huge)
    checked = checked + used
  end
  more = more or checked >= 2000 or #chosen == count
  if checked > 0 then
    begin_writes() -- waiting items must be leased even then
  end
  if #chosen > 0 then
    if in_lanes then lease_lanes().commit(now + hold_ms) end
    take_tokens()
    write_leases(#chosen, hold_ms)
    local places = {}
    for i, id in ipairs(chosen) do
      places[i] = string.format('%.0f', last_token + i) .. ' ' .. id
    end
    in_chunks('RPUSH', set_key, places)
    redis.call('PEXPIRE', set_key, keep_ms)
    begin_leases()
  end
  drop_checked(checked)
  if in_lanes then
    local _, _, unsettled = lease_lanes().finish('', #chosen < count)
    more = more or unsettled
  end
  if #chosen == 0 and #unreadable > 0 then
    flush()
    return unreadable_error()
  end
end
flush()
return { 1, had, had + #chosen, more and 1 or 0, count_waiting() }
