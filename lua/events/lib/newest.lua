-- Return the number of the last event.
--
-- Needs: prefix, events
-- Gives: newest

-- As text; false if none are kept. An event may have a higher number than `last`, if an error has ended a
-- script between writing the two.
local function newest()
  local last = redis.call('HGET', prefix .. ':events:keep', 'last')
  local entry = last and redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  return last
    and string.format('%.0f', math.max(last, entry and string.match(entry[1], '^%d+') or 0))
end
