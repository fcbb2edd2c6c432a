-- Add to the history of a queue: a cell for each minute, hour and day.
--
-- A cell is `ROLLUP_SLOTS` numbers of 40 bits, in the order of `history_read`. The cells of an hour, a day or
-- 32 days are one string, `:rollup:<tier>:<its number since 1970>`, which gets its whole size and its time to
-- live when it is made: an early cell costs as much as a late one. The time of each call says which cell, so
-- after a step of the clock nothing needs a repair.
--
-- Needs: prefix
-- Gives: tier_of, bucket_of, add_to_rollups
-- Uses: ROLLUP_BYTES, ROLLUP_OLDEST, ROLLUP_SLOTS (encodings), read_clock (read_clock)

-- Return for how long a cell lasts (ms), how many are in a key, and for how long that is kept after the last.
local function tier_of(tier)
  if tier == 'minute' then return 60000, 60, 172800000 end
  if tier == 'hour' then return 3600000, 24, 2678400000 end
  return 86400000, 32, 31622400000
end

-- Return the place of a time among the seven of a histogram, whose upper bounds are 10 ms, 100 ms, 1 s, 10 s,
-- 1 min, 10 min and none.
local function bucket_of(ms)
  local place, bound = 0, 10
  while place < 6 and ms > bound do
    place = place + 1
    bound = (bound == 10000 and 60000) or bound * 10
  end
  return place
end

-- Add numbers by their slots, and raise the age of the oldest item to `age` (0: it says nothing). What the
-- server refuses is not counted, as no item is to fail for that.
local function add_to_rollups(counts, age)
  local now_read, strings, commands = read_clock(), {}, {}
  for i, tier in ipairs({ 'minute', 'hour', 'day' }) do
    local cell_ms, cells = tier_of(tier)
    local cell = math.floor(now_read / cell_ms)
    local base, size = cell % cells * ROLLUP_SLOTS, 4
    strings[i] = prefix .. ':rollup:' .. tier .. ':' .. math.floor(cell / cells)
    local command = { 'BITFIELD', strings[i], 'OVERFLOW', 'SAT' }
    for slot, number in pairs(counts) do
      command[size + 1], command[size + 2] = 'INCRBY', 'u40'
      command[size + 3], command[size + 4] = '#' .. base + slot, number
      size = size + 4
    end
    if age > 0 then
      local found = redis.pcall('BITFIELD', strings[i], 'GET', 'u40', '#' .. base + ROLLUP_OLDEST)
      if age > (found[1] or 0) then
        command[size + 1], command[size + 2] = 'SET', 'u40'
        command[size + 3], command[size + 4] = '#' .. base + ROLLUP_OLDEST, age
      end
    end
    commands[i] = command
  end
  local all_exist = redis.call('EXISTS', unpack(strings)) == 3
  for i, command in ipairs(commands) do
    local refused
    if command[5] and not all_exist then
      local cell_ms, cells, kept_ms = tier_of((string.match(strings[i], '(%a+):%d+$')))
      local zeros = string.rep('\0', cells * ROLLUP_SLOTS * ROLLUP_BYTES)
      local made = redis.pcall('SET', strings[i], zeros, 'PX', kept_ms + cells * cell_ms, 'NX')
      refused = made and made.err
    end
    if command[5] and not refused then redis.pcall(unpack(command)) end
  end
end
