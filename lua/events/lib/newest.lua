-- Return the number of the last event.
--
-- Needs: prefix, events
-- Gives: newest
-- Uses: TOKEN_LIMIT (encodings)

-- As text; false if none are kept. An event may have a higher number than `last`, if an error has ended a
-- script between writing the two.
local function newest()
  local last = redis.call('HGET', prefix .. ':events:keep', 'last')
  local entry = last and redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local number =
    math.max(tonumber(string.match(last or '', '^%d+$') or 0), entry and string.match(entry[1], '^%d+') or 0)
  return last and string.format('%.0f', math.min(number, TOKEN_LIMIT))
end
