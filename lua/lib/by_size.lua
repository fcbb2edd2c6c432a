-- Items are looked at without their data: it may be large, and nobody is given it now.
--
-- Needs: nothing
-- Gives: look, weigh, most_bytes

local look, weigh, most_bytes = 'STRLEN', tonumber, math.huge
