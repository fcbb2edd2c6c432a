-- Check who reads a stream of leases: the last reader that took it over. An earlier one may still run.
--
-- Needs: prefix, stream, reader
-- Gives: stream_key, is_stream_owner

local stream_key = prefix .. ':stream:' .. stream
local last_reader = redis.call('HGET', stream_key, 'reader')

-- No reader is known if the server has lost its data, or the stream has not been read for long.
local function is_stream_owner() return not last_reader or last_reader == reader end
