-- Read the server's time once, when it is needed, unless a test provides one.
--
-- Needs: now_ms
-- Gives: read_clock

local time_read = now_ms

local function read_clock()
  if not time_read then
    local time = redis.call('TIME')
    time_read = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return time_read
end
