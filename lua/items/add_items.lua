-- Add items whose id does not exist yet; replace items that are given as unique, or
-- to be replaced while they wait.
--
-- If one item is added to an empty queue for which a process waits, it is
-- delivered: see `leases/lib/deliver`.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, fence, idle, options, errors, events
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   items   rest     id, data, delay in ms (0: none; -1: none, and it is leased next; `@` and
--       ms since 1970: until then), mode and
--       options (see `items/lib/add`), …
-- Reply: a list with an entry per item: 1 added or replaced, 0 the id is taken; a text: it was not added, as
--   the item with this id waits or is scheduled with the same key, and was not started yet.
-- Cost: O(1) per item, plus O(log n) for a delayed one.
-- Limits: at most 1,000 items a call and, except for a single item, 1 MiB of data.
-- Uses: add_rows (add), closed_error, is_closed (closed), can_deliver, deliver (deliver), flush (emit)

if is_closed then return closed_error() end
local alone, trace, reference = #ARGV - items == 4, nil, nil
if alone and #ARGV[items + 4] > 1 then
  trace = string.match(ARGV[items + 4], '^%d:{"trace":"([%x-]+)"}$')
  alone = trace
  if not trace and string.find(ARGV[items + 4], '"run"', 1, true) then
    local sent = cjson.decode(string.sub(ARGV[items + 4], 3))
    trace, reference, sent.trace, sent.run = sent.trace, sent.run, nil, nil
    alone = not next(sent)
  end
  alone = alone and #(trace or '') <= 64
end
local unawaited
if alone then
  alone, unawaited = can_deliver(#ARGV[items + 2])
end
local answers, _, waiting = add_rows({}, unawaited)
if alone and waiting[1] then deliver(waiting[1], ARGV[items + 2], trace, reference) end
flush()
return answers
