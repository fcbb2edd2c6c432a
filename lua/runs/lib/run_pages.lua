-- Return a page of the runs in a sorted set, from the highest score to the lowest,
-- and where the next one begins.
--
-- A cursor is the score and the id of the last entry of a page, so that pages miss no entry and have none
-- twice, whatever enters or leaves the set in between.
--
-- Needs: cursor, count
-- Gives: page_of_runs
-- Uses: paired (lists)

-- Return whether a text comes before another by its bytes, as the server sorts them.
local function is_before(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then return a < b end
  end
  return #one < #other
end

-- Return the place of the first entry after the cursor.
local function place_after(key)
  local at, id = string.match(cursor, '^(%S+) (.*)$')
  if not at then return 0 end
  at = tonumber(at)
  local low, high = 0, redis.call('ZCARD', key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = redis.call('ZRANGE', key, middle, middle, 'REV', 'WITHSCORES')
    local score = tonumber(entry[2])
    if score < at or (score == at and is_before(entry[1], id)) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- Return ids, their scores (ms, or infinity), and the next cursor; '' if this is the last page.
local function page_of_runs(key)
  local start = place_after(key)
  local page = redis.call('ZRANGE', key, start, start + count - 1, 'REV', 'WITHSCORES')
  local ids, scores = paired(page)
  local next_one = #ids == count and scores[#ids] .. ' ' .. ids[#ids] or ''
  return ids, scores, next_one
end
