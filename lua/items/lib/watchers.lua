-- Notify the sessions that wait for the end of items: see `await_results`.
--
-- Needs: prefix, watchers
-- Gives: notify_watchers, push_to_watchers
-- Uses: in_chunks, read_in_chunks (keys)

local any_watchers = redis.call('HLEN', watchers) > 0

-- Publish a message to each session of a list of names.
local function push(waiters, message)
  for session in string.gmatch(waiters, '%S+') do
    redis.pcall('PUBLISH', prefix .. ':push:' .. session, message)
  end
end

-- Publish `ended <id>` to each session that waits for the end of one of these items; `what`: another word and
-- a space before the id. Call it after all other writes: a session that is not notified asks again.
local function notify_watchers(ids, what)
  if not any_watchers then
    return
  end
  local waiting_for, ended = read_in_chunks('HMGET', watchers, ids), {}
  for i, id in ipairs(ids) do
    if waiting_for[i] then
      ended[#ended + 1] = id
      push(waiting_for[i], (what or 'ended ') .. id)
    end
  end
  in_chunks('HDEL', watchers, ended)
end

-- Publish messages (id -> message) about items that have not ended.
local function push_to_watchers(ids, messages)
  if any_watchers then
    local waiting_for = read_in_chunks('HMGET', watchers, ids)
    for i, id in ipairs(ids) do
      if waiting_for[i] and messages[id] then
        push(waiting_for[i], messages[id])
      end
    end
  end
end
