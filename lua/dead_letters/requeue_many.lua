-- Put dead letters back to the end of the queue, as items that were never leased.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, dead, options, errors, events
-- Arguments:
--   prefix     text     the queue's name
--   now_ms     integer  the time; empty: the server's time
--   max_bytes  integer  stop before this much data (the first dead letter is always requeued)
--   entries    rest     ids
-- Reply: a list with an entry per id: 1 requeued, 0 there is no such dead letter, -1 not requeued because an
--   item with its id is in the queue, -2 not checked, nor any after it, because of `max_bytes`: call again.
-- Cost: O(log n) per id. The data is copied.
-- Limits: at most 1,000 ids and `max_bytes` of data a call.
-- Needs: check
-- Uses: tags_key (RARE_KEYS), find_earlier, forget_earlier (begin_incarnation), closed_error, is_closed
--   (closed), dead_key, leave_dead (dead_letter), emit, emitting, flush (emit), any_options, write_options
--   (facts), data_key (keys), wake_next (slots), enter_waiting (waiting)

if is_closed then return closed_error() end
redis.call('ZCARD', dead)
redis.call('ZCARD', tags_key)
local answers, requeued, data_of, not_dead, bytes = {}, {}, {}, {}, 0
for row = entries + 1, #ARGV do
  local id, answer = ARGV[row], -2
  bytes = bytes + redis.call('HSTRLEN', dead_key(id), 'data')
  if row == entries + 1 or bytes <= max_bytes then
    local data = redis.call('HGET', dead_key(id), 'data')
    if not data then
      answer = 0
      not_dead[#not_dead + 1] = id
    elseif not data_of[id] and redis.call('EXISTS', data_key(id)) == 0 then
      answer = 1
      requeued[#requeued + 1], data_of[id] = id, data
    else
      answer = -1
    end
  end
  answers[#answers + 1] = answer
end

local earlier, text_of = find_earlier(requeued), {}
for _, id in ipairs(requeued) do
  text_of[id] = redis.call('HGET', dead_key(id), 'options')
end
if any_options() or next(text_of) then write_options(requeued, text_of) end
enter_waiting(requeued, false)
if earlier then forget_earlier(requeued, earlier) end
for _, id in ipairs(requeued) do
  redis.call('SET', data_key(id), data_of[id])
end
leave_dead(requeued)
wake_next()
leave_dead(not_dead) -- ids that are listed without a dead letter
for _, id in ipairs(emitting and requeued or {}) do
  emit('requeued', id, { size = #data_of[id] })
end
flush()
return answers
