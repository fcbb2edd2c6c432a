-- Read every key of an item's states before anything is written.
--
-- If one has another type, this raises WRONGTYPE, and the script changes nothing. Scripts that read these
-- keys in any case do not need it.
--
-- Needs: queue, processing, gone, deadlines, scheduled, ledger
-- Gives: nothing

redis.call('LLEN', queue)
redis.call('LLEN', processing)
redis.call('ZCARD', gone)
redis.call('ZCARD', deadlines)
redis.call('ZCARD', scheduled)
redis.call('HLEN', ledger)
