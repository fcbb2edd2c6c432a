-- Complete items of a set, unless another reader has taken over its stream.
--
-- The rows are those that `set_read` has returned and not given up. Such an item was read, so its holder may
-- complete it even if the lease has expired.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   stream   text     the name of the stream
--   reader   text     the reader of the stream
--   entries  rest     id, token, fenced (1: accept only the current holder; else 0), …
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); then an entry per item, as in
--   `complete_many`.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Uses: complete (complete), is_stream_owner (stream_owner)

if not is_stream_owner() then return { 0 } end
local answers = complete(ARGV, entries)
table.insert(answers, 1, 1)
return answers
