-- Who reads a stream of leases: the reader that came last. An earlier one of the same stream may still run.
--
-- Needs: prefix, stream, reader
-- Gives: stream_key, is_stream_owner

local stream_key = prefix .. ':stream:' .. stream
local last_reader = redis.call('HGET', stream_key, 'reader')

-- Nobody is known if the server has lost its data, or nobody has read for long.
local function is_stream_owner()
  return not last_reader or last_reader == reader
end
