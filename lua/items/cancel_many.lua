-- Cancel items, whether they wait, are scheduled or leased: none of them is leased again or completed.
--
-- A holder finds nothing to complete. If it is a session of ours, it is notified at once;
-- clients of other libraries are not.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the queue's name
--   now_ms   integer  the time; empty: the server's time
--   entries  rest     id, for how many ms callers that ask for its result find that it was
--       cancelled (0: not at all; the longest time of all rows counts for each), …
-- Reply: a list with an entry per item: 1 cancelled, 0 there is none.
-- Cost: O(log n) per item; leaving `processing` is O(1) amortised.
-- Limits: at most 1,000 items a call.
-- Uses: cancel (cancel)

local ids, keep_ms = {}, 0
for row = entries + 1, #ARGV, 2 do
  ids[#ids + 1] = ARGV[row]
  keep_ms = math.max(keep_ms, tonumber(ARGV[row + 1]))
end
return cancel(ids, keep_ms)
