-- Read the server's time. Pieces of scripts that seldom need it call `read_clock`.
--
-- Needs: nothing
-- Gives: now

local now = read_clock()
