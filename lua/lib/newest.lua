-- The number of the last event.
--
-- Needs: prefix, events
-- Gives: newest

-- As text; false if none are kept. An event may be newer than what is written down: an error may have ended a
-- step between the two.
local function newest()
  local last = redis.call('HGET', prefix .. ':events:keep', 'last')
  local entry = last and redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  return last
    and string.format('%.0f', math.max(last, entry and string.match(entry[1], '^%d+') or 0))
end
