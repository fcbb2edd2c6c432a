-- Register a session that is about to wait, for longer than its blocking move can last.
--
-- The command is sent on the waiting connection, right before the move. So no move is ever running for a
-- session that is not registered, and ids that arrive for a process that has died are found through its
-- session.
--
-- With `lease_ms`, an item that is added to the empty queue may be delivered to the session: see
-- `leases/lib/deliver`. The session acknowledges deliveries with this script as well.
--
-- Keys: errors, gone, options, queue, deadlines, scheduled, ledger, sessions, idle
-- Arguments:
--   prefix    text     the queue's name
--   now_ms    integer  the time; empty: the server's time
--   session   text     the session that waits
--   keep_ms   integer  how long it is registered
--   lease_ms  integer  the lease time of items that are delivered to it, at most 32,767; empty: deliver
--       none; 0: none, but notify it when an item is added, as it makes no blocking move; odd: also this
--   word      text     with what the next delivery begins: 16 hexadecimal digits, new in each call
--   before    text     that of its last registration, which ends; empty: it has been used
--   accepted  rest     deliveries that it has accepted: `<token> <id>`
-- Reply: ms until the next item falls due or lease expires (0: one has, or a session has expired whose inbox
--   has to be reclaimed, or one has not asked at the time of `alarm`; -1: none will, or others ask then; -2:
--   as well, and others make a blocking move: look when notified, or when it is time to register again).
-- Cost: O(log n) in the number of waiting processes.
-- Limits: none.
-- Uses: count_askers (askers), now (clock), right_turns (control), controlled (controlled), next_due_in
--   (due), ALARM_GRACE_MS, ASK_WHEN_DUE, IDLE_LEASES, IDLE_UNIT_MS, LOOKS_MARK (encodings), wake_next
--   (slots), bound_leases, bound_sessions (steps)

local delivered_key = prefix .. ':delivered:' .. session

if #ARGV == accepted then -- it is about to wait, so there is time for it
  bound_sessions(100, math.max(60000, keep_ms))
  bound_leases(100)
  if controlled then right_turns() end
end
local wait = next_due_in()
local first = redis.call('ZRANGE', sessions, 0, 1, 'WITHSCORES')
for i = 1, #first, 2 do
  if first[i] ~= session and tonumber(first[i + 1]) <= now then wait = 0 end
end
-- The session that was to ask when a limit permits more has not.
local alarm = redis.call('GET', prefix .. ':alarm')
if alarm and tonumber(string.match(alarm, '^%d+') or now) + ALARM_GRACE_MS < now then wait = 0 end
-- By chance: whoever is registered long enough is chosen at some time. The server visits all clients that are
-- blocked on a list when it ceases to be empty, so few of many sessions make a blocking move.
local others, chance = count_askers(prefix), tonumber(string.sub(redis.sha1hex(session .. now), 1, 8), 16)
local is_chosen = others <= ASK_WHEN_DUE or chance % others < ASK_WHEN_DUE
local looks = lease_ms and lease_ms > 0 and (lease_ms % 2 == LOOKS_MARK or not is_chosen)
if wait > 0 and not is_chosen then wait = -1 end
redis.call('ZCARD', idle)
redis.call('STRLEN', delivered_key)
redis.call('ZADD', sessions, now + keep_ms, session)
for row = accepted + 1, #ARGV do
  if redis.call('GET', delivered_key) == ARGV[row] then redis.call('UNLINK', delivered_key) end
end
if lease_ms then
  if looks then lease_ms = lease_ms - lease_ms % 2 + LOOKS_MARK end
  local ends = math.floor((now + keep_ms) / IDLE_UNIT_MS) * IDLE_LEASES
  redis.call('ZADD', idle, string.format('%.0f', ends + lease_ms), word .. '@' .. session)
  redis.call('PEXPIRE', idle, keep_ms)
end
if looks and wait < 0 then wait = -2 end
if (looks or lease_ms == 0) and redis.call('LLEN', queue) > 0 then wait = 0 end -- added before it was noted
if before ~= '' then redis.call('ZREM', idle, before .. '@' .. session) end
wake_next() -- a slot may have become free since the session has leased
return wait
