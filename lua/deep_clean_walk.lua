-- One step of a walk over the ids that wait, those on their way to a process first.
--
-- Keys: queue, sessions
-- Arguments:
--   prefix  text     the queue's name
--   start   integer  where to begin, from the end of the queue (0: the youngest)
--   count   integer  how many ids
-- Reply: the ids; fewer than `count` when the walk is over.
-- Cost: O(start + count).
-- Limits: `count` ids (at most 1,000), and the inboxes of 1,000 sessions when start is 0.

return waiting_ids(start, count)
