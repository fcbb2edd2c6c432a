-- Take over a stream of leases, or keep it: extend the time that its reader and its sets are known, or drop
-- sets.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the queue's name
--   stream   text     the name of the stream
--   reader   text     the reader of the stream
--   take     flag     1: take the stream over from any other reader
--   keep_ms  integer  how long the reader is known from now on
--   sets     rest     name of a set, how many ms it is kept from now on (0: drop it), …
-- Reply: 1, or 0 if another reader has taken over (then nothing was done); how many ids wait.
-- Cost: O(1) per set; O(n) to drop one of n items.
-- Limits: 1,000 sets a call.
-- Uses: begin_writes (begin_writes), is_stream_owner, stream_key (stream_owner)

local waiting = redis.call('LLEN', queue)
if not (take or is_stream_owner()) then return { 0, waiting } end
begin_writes() -- the leases of the stream must continue even then
redis.call('HSET', stream_key, 'reader', reader)
redis.call('PEXPIRE', stream_key, keep_ms)
for row = sets + 1, #ARGV, 2 do
  local set_key = prefix .. ':set:' .. ARGV[row]
  if ARGV[row + 1] == '0' then
    redis.call('UNLINK', set_key)
  else
    redis.call('PEXPIRE', set_key, ARGV[row + 1])
  end
end
return { 1, waiting }
