-- Return chunks that the runs of items have emitted, those after a place: see `items/lib/chunks`.
--
-- Keys: queue, options
-- Arguments:
--   prefix   text  the queue's name
--   entries  rest  id, kind (`emitted` or `logged`), the id of the entry after which to begin
--       (`0-0`: with the first), …
-- Reply: a list with an entry per row, which is a list: 1 if there are chunks, 0 if there are none (yet), -2
--   if this row was not read, nor any after it: ask again; then the id of the entry, its token, attempt and
--   chunk for each. If there are any, there may be more after them.
-- Cost: O(log n) per row and O(1) per chunk.
-- Limits: at most 1,000 rows a call. A row is read until it has 64 KiB or 512 chunks, and none after 1 MiB.
-- Uses: chunks_key, keeps_chunks (chunks), data_key (keys), append (lists)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script

local total = 0

-- Put the chunks after an entry into an answer.
local function read(answer, key, after)
  local bytes, more = 0, true
  while more and bytes < 65536 and #answer < 4 * 512 do
    local page = redis.call('XRANGE', key, '(' .. after, '+', 'COUNT', 16)
    for _, entry in ipairs(page) do
      local fields = entry[2]
      after, bytes = entry[1], bytes + #(fields[6] or '')
      append(answer, after, fields[2], fields[4] or '', fields[6] or '')
    end
    more = #page == 16
  end
  total = total + bytes
end

local answers = {}
for row = entries + 1, #ARGV, 3 do
  local id, kind, after = ARGV[row], ARGV[row + 1], ARGV[row + 2]
  local key, answer = chunks_key(kind, id), { -2 }
  if total < 1048576 then
    -- Those of an unfinished item that has begun none are of an earlier one.
    local is_its = keeps_chunks(redis.call('HGET', options, id), kind)
      or redis.call('EXISTS', data_key(id)) == 0
    answer[1] = is_its and redis.call('EXISTS', key) or 0
    if answer[1] == 1 then read(answer, key, after) end
  end
  answers[#answers + 1] = answer
end
return answers
