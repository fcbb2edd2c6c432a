-- Read every key of an item's states before anything is written.
--
-- If one has another type, this raises WRONGTYPE, and the script changes nothing.
--
-- Needs: queue, processing, gone, deadlines, scheduled, ledger
-- Gives: any_scheduled

redis.call('LLEN', queue)
redis.call('LLEN', processing)
redis.call('SCARD', gone)
redis.call('ZCARD', deadlines)
redis.call('HLEN', ledger)
local any_scheduled = redis.call('ZCARD', scheduled) > 0
