-- Keep what the runs of items emit: the chunks of their streams (`P:emitted:<id>`) and of their logs
-- (`P:logged:<id>`), each in a stream of the server.
--
-- An entry has the id `<token>-<bytes>`: that of the run, unless an entry before it has a larger one, and how
-- many bytes were emitted until its end; each entry counts `CHUNK_BYTES` more than its chunk has. While the
-- item is unfinished, its options have for how many ms its chunks are to be kept after its end, as
-- `emitted` and `logged`; where no run has emitted anything, nothing is written. A dead letter carries
-- `logged`, and its log has no time to live.
--
-- Needs: prefix
-- Gives: chunks_key, keeps_chunks, end_chunks
-- Uses: carried_by (tags)

local function chunks_key(kind, id) return prefix .. (kind == 'logged' and ':logged:' or ':emitted:') .. id end

-- Return for how many ms (a text) chunks of a kind are kept, as options say it; nil: the item has none.
local function keeps_chunks(text, kind)
  return type(text) == 'string' and string.match(text, '"' .. kind .. '":(%d+)') or nil
end

-- Begin the time for which the chunks of an item that has ended are kept; `is_replaced`: remove them, as
-- another item has its id. The log of a dead letter is kept with it.
local function end_chunks(id, text, is_replaced)
  if not string.find(text or '', 'ed":', 1, true) then return end
  for _, kind in ipairs({ 'emitted', 'logged' }) do
    local kept_for = keeps_chunks(text, kind)
    if kept_for and is_replaced then
      redis.call('UNLINK', chunks_key(kind, id))
    elseif kept_for and not (kind == 'logged' and keeps_chunks(carried_by(id), kind)) then
      redis.call('PEXPIRE', chunks_key(kind, id), kept_for)
    end
  end
end
