-- Notify the readers of published events that no more will follow: see `events/lib/emit`.
--
-- Needs: prefix
-- Gives: end_publishing

local function end_publishing()
  redis.pcall('SPUBLISH', prefix .. ':live', '{"off":true}')
  redis.pcall('PUBLISH', prefix .. ':live', '{"off":true}')
end
