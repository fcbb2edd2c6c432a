-- Complete items: exactly one holder of each incarnation is told so.
--
-- A number of this incarnation counts even if its lease has expired (the slow worker that finishes
-- first has finished); a number of an earlier incarnation never does.
--
-- To keep a result, `fenced` is followed by `:`, for how many ms, `:` and the result: `0:60000:done`.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time, or empty for the server's
--   entries  rest     id, token, fenced (1: only the current holder counts; else 0), …
-- Reply: a list, an entry per item: 1 completed by this call, 0 completed before, -1 refused (the
--   number is of an earlier incarnation or, when fenced, not the current one).
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items and, but for a single item, 1 MiB of results a call.
-- Needs: check

return complete()
