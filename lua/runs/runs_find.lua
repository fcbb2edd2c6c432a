-- Return the flow runs that have given values of attributes, one page at a time:
-- first those that are unfinished.
--
-- Keys: queue
-- Arguments:
--   prefix   text     the home queue's name
--   now_ms   integer  the time; empty: the server's time
--   flow     text     the name of the flow, under which its look-ups are kept; may be empty
--   cursor   text     empty in the first call, then that of the last reply
--   count    count    how many runs to look at
--   values   rest     attribute, value, …
-- Reply: the next cursor (empty: this was the last page), then ids.
-- Cost: O(log² n + count), in the number of runs that have the rarest of the values.
-- Limits: `count` (at most 1,000) runs, and 1,000 values a call.
-- Uses: now (clock), BY_CUT (encodings), page_of_runs (run_pages)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local keys, rarest = {}, nil
for row = values + 1, #ARGV, 2 do
  local key = prefix .. ':runs:by:' .. flow .. BY_CUT .. ARGV[row] .. BY_CUT .. ARGV[row + 1]
  local size = redis.call('ZCARD', key)
  keys[#keys + 1] = key
  if not rarest or size < rarest[1] then rarest = { size, key } end
end

-- Return whether a run has all the values, and exists.
local function fits(id)
  for _, key in ipairs(keys) do
    if key ~= rarest[2] and not redis.call('ZSCORE', key, id) then return false end
  end
  return redis.call('HEXISTS', prefix .. ':run:' .. id, 'state') == 1
end

local ids, scores, next_cursor = page_of_runs(rarest[2])
local reply = { next_cursor }
for i, id in ipairs(ids) do
  if tonumber(scores[i]) <= now then
    reply[1] = '' -- the time of all that follow is over
    break
  elseif fits(id) then
    reply[#reply + 1] = id
  end
end
return reply
