-- Read the server's time, unless a test provides one.
--
-- Needs: now_ms
-- Gives: now

local now = now_ms
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
