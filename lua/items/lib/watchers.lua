-- Notify the sessions that wait for the end of items: see `await_results`.
--
-- Needs: prefix, watchers
-- Gives: notify_watchers, push_to_watchers
-- Uses: in_chunks, read_in_chunks (keys), push (push)

local any_watchers = redis.call('HLEN', watchers) > 0

-- Publish `ended <id>` to each session that waits for the end of one of these items; `what`: another word and
-- a space before the id. Call it after all other writes: a session that is not notified asks again.
local function notify_watchers(ids, what)
  if not any_watchers then return end
  local waiting_for, ended = read_in_chunks('HMGET', watchers, ids), {}
  for i, id in ipairs(ids) do
    if waiting_for[i] then
      ended[#ended + 1] = id
      push(prefix, waiting_for[i], id, what and what .. id)
    end
  end
  in_chunks('HDEL', watchers, ended)
end

-- Publish messages (id -> message) about items that have not ended.
local function push_to_watchers(ids, messages)
  if any_watchers then
    local waiting_for = read_in_chunks('HMGET', watchers, ids)
    for i, id in ipairs(ids) do
      if waiting_for[i] and messages[id] then push(prefix, waiting_for[i], id, messages[id]) end
    end
  end
end
