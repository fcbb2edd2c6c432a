-- Read the last token.
--
-- Needs: prefix, fence, ledger
-- Gives: is_count, read_fence
-- Uses: TOKEN_LIMIT (encodings), read_clock (read_clock)

-- Return whether a text can be the number of a token.
local function is_count(text) return string.find(text, '^%d+$') and tonumber(text) < TOKEN_LIMIT end

-- Return the last token that was given, and the number that is stored; nil if that is no number. If
-- the counter was removed from a queue in which items were leased, tokens continue from the time in µs,
-- which is above all that were given.
local function read_fence()
  local stored = redis.call('GET', fence)
  if not stored then
    local is_new = redis.call('EXISTS', ledger, prefix .. ':dead') == 0
    return is_new and 0 or read_clock() * 1000, 0
  end
  local number = is_count(stored) and tonumber(stored)
  return number or nil, number
end
