-- Reclaim expired leases and due items, then lease waiting items, those in the session's inbox first.
--
-- Ids without data (ghosts) and ids of leased or scheduled items (doubles) are dropped from the list.
--
-- Keys: queue, inbox, processing, gone, deadlines, scheduled, ledger, fence, sessions, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time; empty: the server's time
--   session       text     the holder: the value of the lease keys
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   max_bytes     integer  stop before this much data (the first item is always leased)
--   requests      rest     count, lease time in ms, … (a pair for each caller, or for callers with the same lease time)
-- Reply: the time in ms, ms until the next item falls due or lease expires (0: call again, -1: none will),
--   the number of sessions, then id, data, token, attempt for each item, in the order of `requests`.
-- Cost: O(log n) per item leased or reclaimed, O(1) per ghost or double.
-- Limits: 1,000 items leased, 100 reclaimed, 2,000 ids checked, `max_bytes` of data a call.
-- Needs: check

redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)

begin_writes() -- waiting items must be leased even then
local _, more = reclaim(100)

local total = 0
for i = requests + 1, #ARGV, 2 do
  total = total + tonumber(ARGV[i])
end
local checked, stop = 0, nil
for _, source in ipairs({ inbox, queue }) do
  while #chosen < total and not stop and checked < 2000 do
    local used
    used, stop = choose(source, math.min(total - #chosen, 500), 'GET', max_bytes)
    if used == 0 then
      break
    end
    checked = checked + used
  end
end
if type(stop) == 'string' and #chosen == 0 then
  flush()
  return redis.error_reply('WRONGTYPE ' .. stop .. ' is no data of an item')
end
more = more or stop == true or checked >= 2000

local reply = { now, -1, 0 }
if #chosen > 0 then
  local done = 0
  for i = requests + 1, #ARGV, 2 do
    done = lease_next(done, tonumber(ARGV[i]), ARGV[i + 1], reply)
  end
end

flush()
reply[3] = redis.call('ZCARD', sessions)
if more then
  reply[2] = 0
elseif #chosen < total then
  reply[2] = next_due_in()
end
return reply
