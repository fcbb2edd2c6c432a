-- Items are looked at with their data, for those who are given it.
--
-- Needs: max_bytes
-- Gives: look, weigh, most_bytes

local look, weigh, most_bytes = 'GET', string.len, max_bytes
