-- Note what was cancelled lately, or has expired (then the time has `EXPIRED_MARK`): id → until when a
-- caller that waits for its result finds it here.
--
-- Needs: nothing
-- Gives: note_cancelled
-- Uses: cancelled_key (RARE_KEYS), in_chunks (keys), scored (lists), read_clock (read_clock)

-- Keep in mind for `for_ms` that the items were cancelled, or with `EXPIRED_MARK` that they have expired, and
-- forget as many that have been for long enough.
local function note_cancelled(ids, for_ms, mark)
  local at = read_clock()
  local old = redis.call('ZRANGEBYSCORE', cancelled_key, '-inf', at, 'LIMIT', 0, 2 * #ids)
  in_chunks('ZREM', cancelled_key, old) -- first: an id may be noted again
  in_chunks('ZADD', cancelled_key, scored(at + for_ms + (mark or 0), ids))
  if redis.call('PTTL', cancelled_key) < for_ms then redis.call('PEXPIRE', cancelled_key, for_ms) end
end
