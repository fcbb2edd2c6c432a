-- Return a slice of the ids that wait in the queue, and in what is held while it is controlled: of one list,
-- as an id stays at its place when it moves from the one to the other.
--
-- Keys: queue, sessions
-- Arguments:
--   prefix  text     the queue's name
--   start   integer  the first place to return, from the young end of the queue (0: the youngest)
--   count   count    how many ids to return
-- Reply: the ids; fewer than `count` at the end of the walk. With `start` 0, the ids in inboxes follow.
-- Cost: O(start + count).
-- Limits: `count` ids (at most 1,000), and the inboxes of 1,000 sessions when start is 0.
-- Uses: waiting_ids (waiting)

return waiting_ids(start, count, true)
