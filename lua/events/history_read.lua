-- Return the last cells of the history of a queue: see `rollup`.
--
-- A cell is 20 numbers of 5 bytes, the highest byte first: how many items were added, how many were
-- completed, how many attempts failed, how many items became dead letters, and how many leases expired; seven
-- times how many runs took up to 10 ms, 100 ms, 1 s, 10 s, 1 min, 10 min, and longer, from the lease to the
-- end; the same of how long items waited that `sample_queue` has seen; and the highest age of the oldest
-- waiting item that it found, in ms.
--
-- Keys: queue
-- Arguments:
--   prefix  text     the queue's name
--   now_ms  integer  the time; empty: the server's time
--   which   text     `minute`, `hour` or `day`, by UTC
--   cells   integer  how many, with the one that is not over yet
-- Reply: the time in ms, for how long a cell lasts in ms, 1 if events are counted, the cells in one string.
-- Cost: O(bytes): 100 per cell.
-- Limits: at most 3,000 cells a call.
-- Uses: history_key (RARE_KEYS), now (clock), ROLLUP_BYTES, ROLLUP_SLOTS (encodings), tier_of (rollup)

if cells > 3000 then return redis.error_reply('LIMIT at most 3,000 cells') end
redis.call('LLEN', queue) -- a cluster finds the node by a key of the script
local size = ROLLUP_SLOTS * ROLLUP_BYTES
local cell_ms, per_key = tier_of(which)
local last = math.floor(now / cell_ms)
local at, parts = last - cells + 1, {}
while at <= last do
  local key, from = math.floor(at / per_key), at % per_key
  local count = math.min(per_key - from, last - at + 1)
  local name = prefix .. ':rollup:' .. which .. string.format(':%.0f', key)
  local found = redis.pcall('GETRANGE', name, from * size, (from + count) * size - 1)
  found = type(found) == 'string' and found or '' -- what another client has written there says nothing
  parts[#parts + 1] = found .. string.rep('\0', count * size - #found)
  at = at + count
end
local keep = redis.pcall('HGET', history_key, 'rollup')
return { now, cell_ms, keep == '1' and 1 or 0, table.concat(parts) }
