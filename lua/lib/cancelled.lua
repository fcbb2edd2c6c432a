-- Name the key of what was cancelled lately: id → until when a caller that waits for its result is told so.
--
-- Needs: prefix
-- Gives: cancelled_key

local cancelled_key = prefix .. ':cancelled'
