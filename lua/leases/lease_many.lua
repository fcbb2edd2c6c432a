-- Reclaim expired leases and due items, then lease waiting items, those in the session's inbox first.
--
-- Ids without data (ghosts) and ids of leased or scheduled items (doubles) are dropped from the list.
--
-- Keys: queue, inbox, processing, gone, deadlines, scheduled, ledger, fence,
--   sessions, options, errors, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time; empty: the server's time
--   session       text     the holder: the value of the lease keys
--   set_many      flag     1: the server has MSETEX and permits it, see `probe`
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   max_bytes     integer  stop before this much data (the first item is always leased)
--   by_level      flag     1: lease items of one level alone, the first that is served
--   whole         flag     1: lease all items of a batch that has gathered (see `gathering`), even if they
--       are more than the only request asks for; then no others
--   requests      rest     count, lease time in ms, … (a pair for each caller, or for
--       callers with the same lease time)
-- Reply: the time in ms, ms until the next item falls due, a lease expires (0: call again, -1: none will) or
--   time permits more of a limit, how many sessions can lease what falls due (if it has leased less than was
--   asked for; else 0; negative: no other session will ask at that time because of a limit), then id, data,
--   token, attempt for each item, in the order of `requests`. If one of them carries more, a list with that
--   of each, or nil, comes last: its trace, if it has one; of a stage of a flow run or an item of a group, a
--   line feed and the reference; then of the latter three NUL and the group as JSON has it. With `by_level`,
--   the level of what is leased next comes after that, as a text, if the queue is controlled and has more.
-- Cost: O(log n) per item leased or reclaimed, O(1) per ghost or double.
-- Limits: 1,000 items asked for, 250 leased, 100 reclaimed, 1,000 ids checked, `max_bytes` of data a call.
-- Uses: count_askers (askers), begin_writes (begin_writes), now (clock), is_closed (closed), controlled
--   (controlled), next_due_in (due), flush (emit), any_facts, traces_of (facts), begin_leases, choose,
--   chosen, drop_checked, take_tokens, unreadable, unreadable_error, write_leases (lease), lease_lanes
--   (lease_lanes), can_reclaim, reclaim (reclaim)

local asked = 0
for i = requests + 1, #ARGV, 2 do
  asked = asked + tonumber(ARGV[i])
end
if asked > 1000 then return redis.error_reply('LIMIT 1000 items') end
if is_closed then return { now, -1, 0 } end
local more = false
if can_reclaim then more = reclaim(100, inbox) end
local total = math.min(asked, 250)
local checked, stop = 0, false
-- Choose from a list; returns how many of its ids were checked.
local function choose_from(list)
  local before, used = checked, 1
  while #chosen < total and used > 0 and not stop and checked < 1000 do
    used, stop = choose(list, checked - before, total - #chosen, true, max_bytes)
    checked = checked + used
  end
  return checked - before
end
local in_inbox, in_queue = 0, 0
local in_lanes = controlled and lease_lanes().begin(inbox)
if in_lanes then
  stop = lease_lanes().choose_in_lanes(total, true, max_bytes, by_level, whole)
else
  in_inbox = choose_from(inbox)
  in_queue = choose_from(queue)
end

local reply = { now, -1, 0 }
if checked > 0 then
  begin_writes() -- waiting items must be leased even then
end
if #chosen > 0 then
  if in_lanes then lease_lanes().commit(now + tonumber(ARGV[requests + 2])) end
  take_tokens()
  for i = requests + 1, #ARGV, 2 do
    write_leases(whole and #chosen or tonumber(ARGV[i]), ARGV[i + 1], reply)
  end
  begin_leases()
end
drop_checked(in_queue, inbox, in_inbox)
local wait, is_mine, level = -1, false, nil
if in_lanes then
  local unsettled
  wait, is_mine, unsettled, level = lease_lanes().finish(session, #chosen < asked)
  more = more or unsettled
end
flush()

if #chosen == 0 and #unreadable > 0 then return unreadable_error() end
if more or stop or checked >= 1000 or (#chosen >= total and total < asked) then
  reply[2] = 0
elseif #chosen < asked then
  reply[2] = next_due_in()
  reply[2] = (wait < 0 or (reply[2] >= 0 and reply[2] < wait)) and reply[2] or wait
end
if any_facts and #chosen > 0 then reply[#reply + 1] = traces_of(chosen) end
if #chosen < asked then reply[3] = count_askers(prefix) * (is_mine and -1 or 1) end
if level then reply[#reply + 1] = level end
return reply
