-- Read the server's time. Pieces of scripts that seldom need it call `read_clock`.
--
-- Needs: nothing
-- Gives: now
-- Uses: read_clock (read_clock)

local now = read_clock()
