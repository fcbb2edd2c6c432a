-- Notify the sessions that wait for the end of items: see `await_results`.
--
-- Needs: prefix, watchers
-- Gives: notify_watchers

local any_watchers = redis.call('HLEN', watchers) > 0

-- Publish `ended <id>` to each session that waits for the end of one of these items. Call it after all other writes:
-- a session that is not notified asks again.
local function notify_watchers(ids)
  if not any_watchers then
    return
  end
  local sessions, ended = read_in_chunks('HMGET', watchers, ids), {}
  for i, id in ipairs(ids) do
    if sessions[i] then
      ended[#ended + 1] = id
      for session in string.gmatch(sessions[i], '%S+') do
        redis.pcall('PUBLISH', prefix .. ':push:' .. session, 'ended ' .. id)
      end
    end
  end
  in_chunks('HDEL', watchers, ended)
end
