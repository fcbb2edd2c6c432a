-- Set in which format a queue is written, and which one a program must know to use it.
--
-- What a program must know is lowered only in a queue that holds nothing: what it holds may be written in the
-- format before. A program that does not know the format finds a key `too_new_for:<format>`, for which each
-- script looks. These keys are made first and removed last, whatever `format` says: so a call that was
-- stopped is finished by the next one, and until then the queue refuses too many programs, not too few.
--
-- Keys: format, idle
-- Arguments:
--   prefix   text     the queue's name
--   to       integer  the format
--   floor    integer  which one a program must know
--   known    integer  the newest format that the caller knows
--   version  text     the version of the caller
-- Reply: which format a program must know now, then what the queue holds, if this is why it was not lowered:
--   the ends of keys.
-- Cost: O(known).
-- Limits: none.
-- Uses: extend (lists)

local before = tonumber(string.match(redis.call('GET', format) or '', '^%d+ (%d+)')) or 1
local kinds = { 'queue', 'held', 'lanes', 'deadlines', 'scheduled', 'dead', 'options', 'errors', 'progress' }
extend(kinds, { 'schedules', 'control', 'holds', 'unsettled', 'runs:ends', 'events:keep' })
local held = {}
for _, kind in ipairs(floor < before and kinds or {}) do
  if redis.call('EXISTS', prefix .. ':' .. kind) == 1 then held[#held + 1] = kind end
end
if #held > 0 then floor = before end
local text = string.format('%.0f ', floor) .. version
for one = 1, floor - 1 do
  redis.call('SET', prefix .. ':too_new_for:' .. one, text)
end
if floor > before then redis.call('UNLINK', idle) end -- nothing is sent to a session that it shuts out
if to == 1 and floor == 1 then
  redis.call('UNLINK', format)
else
  redis.call('SET', format, string.format('%.0f ', to) .. text)
end
for one = floor, known - 1 do
  redis.call('UNLINK', prefix .. ':too_new_for:' .. one)
end
return { floor, unpack(held) }
