-- Return what is on its way to a session to the front of the queue, and unregister the session.
--
-- That are the ids in its inbox, and the item delivered to it last, unless it has accepted that. With
-- `stays`, it stays registered: a blocking move may still be running.
--
-- Keys: queue, inbox, processing, gone, deadlines, scheduled, ledger, sessions, idle, options, errors, events
-- Arguments:
--   prefix    text     the queue's name
--   now_ms    integer  the time; empty: the server's time
--   session   text     whose inbox
--   stays     flag     1: the session stays registered
--   word      text     that of its last registration for a delivery, which ends
--   accepted  rest     deliveries that it has accepted: `<token> <id>`
-- Reply: how many ids of the inbox were returned, then the token of the delivery that was recalled.
-- Cost: O(1) per id. An inbox holds one or two.
-- Limits: at most 1,000 ids a call; the session stays registered while its inbox holds more.
-- Uses: drop_alarm (alarm), controlled (controlled), is_current (current), emit_all, flush (emit),
--   empty_inbox (inbox), have_look (looks), drop_lease_keys (move), check_processing, unlist_or_note
--   (processing), wake_next (slots), enter_waiting (waiting)

local delivered_key = prefix .. ':delivered:' .. session

local is_accepted = false

-- Return the token and the id of what was delivered to the session, if it can be recalled.
local function find_delivered()
  local entry = redis.call('GET', delivered_key) or ''
  for row = accepted + 1, #ARGV do
    if ARGV[row] == entry then
      is_accepted = true
      return nil
    end
  end
  local token, id = string.match(entry, '^(%d+) (.*)$')
  if token then
    local score, record = redis.call('ZSCORE', deadlines, id), redis.call('HGET', ledger, id)
    return is_current(id, tonumber(token), score, record) and tonumber(token), id
  end
end

-- Return the item to the front of the queue. The attempt, its first, does not count.
local function recall(id)
  local ids = { id }
  enter_waiting(ids, true)
  redis.call('HDEL', ledger, id)
  redis.call('ZREM', deadlines, id)
  unlist_or_note(ids)
  drop_lease_keys(ids)
  redis.call('UNLINK', delivered_key)
  emit_all('released', ids, '1')
end

-- Read all keys before anything is written, so that a key of another type loses no id.
local listed = redis.call('LLEN', queue)
redis.call('LLEN', inbox)
redis.call('ZCARD', sessions)
redis.call('ZCARD', idle)
redis.call('ZCARD', scheduled)
check_processing()

local token, id = find_delivered()
redis.call('ZREM', idle, word .. '@' .. session)
if token then
  recall(id)
elseif is_accepted then
  redis.call('UNLINK', delivered_key)
end
local returned = empty_inbox(inbox, 1000)
if controlled then drop_alarm(session) end
wake_next()
if listed + returned > 0 then have_look(prefix, 1, true) end -- it may have been notified
if returned < 1000 and not stays then redis.call('ZREM', sessions, session) end
flush()
return { returned, token or nil }
