-- Complete items: remove their data and all bookkeeping, and report each completion to exactly one caller.
--
-- A token of the item's current incarnation is accepted even if its lease has expired, so a slow worker that
-- finishes first has completed the item. A token of an earlier incarnation is always rejected.
--
-- To keep a result, let `fenced` be followed by `:`, the time to keep it in ms (0: only publish it with the event), `:`
-- and the result: `0:60000:done`.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, token, fenced (1: accept only the current holder; else 0; 2: as 0, and the flow run has recorded it), …
-- Reply: a list with an entry per item: 1 completed by this call, 0 completed before, -1 rejected (the token
--   is of an earlier incarnation or, if fenced, not the current one).
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call and, except for a single item, 1 MiB of results.
-- Uses: complete (complete)

return complete()
