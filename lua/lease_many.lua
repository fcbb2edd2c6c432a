-- Bring back what is due, then lease waiting items, the inbox of this session first.
--
-- Ids without data (ghosts) and ids that are under lease or delayed (doubles) are dropped on the way.
--
-- Keys: queue, inbox, processing, gone, deadlines, scheduled, ledger, fence, sessions, events
-- Arguments:
--   prefix        text     the queue's name
--   now_ms        integer  the time, or empty for the server's
--   session       text     who leases: the value of the lease keys
--   return_front  flag     where expired items go: 1 to the front, 0 to the end
--   max_bytes     integer  stop before this much data (the first item is always given)
--   requests      rest     count, lease time in ms, … (a pair per caller or run of callers)
-- Reply: the time in ms, ms until something falls due (0: call again, -1: nothing will), sessions
--   registered, then id, data, token, attempt for each item, in the order of `requests`.
-- Cost: O(log n) per item leased or brought back, O(1) per ghost or double.
-- Limits: 1,000 items, 100 brought back, 2,000 ids looked at, `max_bytes` of data a call.
-- Needs: check

redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)

begin_writes() -- work that waits must be able to begin
local _, more = reclaim(100)

local total = 0
for i = requests + 1, #ARGV, 2 do
  total = total + tonumber(ARGV[i])
end
local looked, broken, is_full = 0, nil, nil
for _, source in ipairs({ inbox, queue }) do
  while #chosen < total and not is_full and not broken and looked < 2000 do
    local used
    used, broken, is_full = choose(source, math.min(total - #chosen, 500), 'GET', max_bytes)
    if used == 0 then
      break
    end
    looked = looked + used
  end
end
if broken and #chosen == 0 then
  flush()
  return redis.error_reply('WRONGTYPE ' .. broken .. ' is no data of an item')
end
more = more or is_full or looked >= 2000

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
