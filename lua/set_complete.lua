-- Complete items of a set, if nobody else has taken over its stream.
--
-- The rows are what `set_read` gives as not given up: what was read, so its holder counts although its lease may
-- be over.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   stream   text     the name of the stream
--   reader   text     who reads it
--   entries  rest     id, token, fenced (1: only the current holder counts; else 0), …
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); then an entry per item, as in
--   `complete_many`.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Needs: check

if not is_stream_owner() then
  return { 0 }
end
local answers = complete()
table.insert(answers, 1, 1)
return answers
