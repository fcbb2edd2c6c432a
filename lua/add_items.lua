-- Add items: those whose id is not there yet, or, as unique, without looking.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, events
-- Arguments:
--   prefix      text      the queue's name
--   now_ms      integer   the time, or empty for the server's
--   items       rest      id, data, delay in ms (0: ready at once; `@` and ms since 1970: at that time), unique (1: do not look), …
-- Reply: a list, an entry per item: 1 added, 0 already there.
-- Cost: O(1) per item, plus O(log n) for a delayed one.
-- Limits: at most 1,000 items and, but for a single item, 1 MiB of data a call.
-- Needs: check

local answers = add_rows({})
return answers
