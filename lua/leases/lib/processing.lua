-- Put ids into `processing`, and remove them without searching the whole list.
--
-- `deadlines` says who is leased. The list only shows it to foreign clients, and an entry that is
-- missing or left over has no effect.
--
-- From a short list each id is removed at once. In a long one a few old entries per id are read: those that
-- explain nothing any more are dropped, the others move to the young end, and ids that were not found are
-- noted in `gone` until they are. So the garbage stays below the list's own length, at a constant cost. A
-- foreign client may have removed an entry that is noted; a light clean drops such notes.
--
-- Needs: processing, gone, deadlines
-- Gives: check_processing, enter_processing, sift, without, unlist_or_note, unlist
-- Uses: foreign_lease_left (foreign), data_key, in_chunks, read_in_chunks (keys), reversed, scored, set_of
--   (lists), any_rare (rare), read_clock (read_clock), waits_near_an_end (waiting)

local at_first = { notes = any_rare }

-- Read the keys before the first write, and how many entries they have. Returns how many are noted.
local function check_processing()
  at_first.length = redis.call('LLEN', processing)
  at_first.noted = at_first.notes and redis.call('ZCARD', gone) or 0
  at_first.notes = at_first.noted > 0
  return at_first.noted
end

-- Sort entries of the list. Dropped are those that come twice, those of the ids that leave now (id
-- -> true), and those of items that are neither leased nor exist. Returns those that stay, the
-- oldest first, those of them that `deadlines` does not explain, which of these are noted (id ->
-- true), and the notes of dropped entries.
local function sift(listed, leaving)
  local scores = read_in_chunks('ZMSCORE', deadlines, listed)
  local notes = at_first.noted > 0 and read_in_chunks('ZMSCORE', gone, listed) or {}
  local staying, unexplained, noted, met, seen = {}, {}, {}, {}, {}
  for i = #listed, 1, -1 do
    local id, score = listed[i], scores[i]
    if not (seen[id] or leaving[id]) and (score or redis.call('EXISTS', data_key(id)) == 1) then
      staying[#staying + 1] = id
      if not score then
        unexplained[#unexplained + 1], noted[id] = id, notes[i]
      end
    elseif notes[i] then
      met[#met + 1] = id
    end
    seen[id] = true
  end
  return staying, unexplained, noted, met
end

-- Drop entries that `sift` cannot explain (id -> true) from those that stay.
local function without(staying, dropped)
  local kept = {}
  for _, id in ipairs(staying) do
    kept[#kept + 1] = not dropped[id] and id or nil
  end
  return kept
end

-- Note ids whose entry was not found.
local function note(ids)
  local notes = scored(read_clock(), ids)
  in_chunks('ZADD', gone, notes)
  at_first.notes = true
end

-- Put ids into the list. An entry that is noted must not be taken for the new one.
local function enter_processing(ids)
  if at_first.notes then in_chunks('ZREM', gone, ids) end
  in_chunks('LPUSH', processing, ids)
end

-- Remove ids from a short list. Those of a long one are only noted: another script finds their entries.
local function unlist_or_note(ids)
  if at_first.length > 128 then
    note(ids)
    return
  end
  for _, id in ipairs(ids) do
    redis.call('LREM', processing, 0, id)
  end
end

-- Look for ids among the oldest entries, or in all of a short list.
local function unlist_old(ids)
  local leaving, missing = {}, {}
  for _, id in ipairs(ids) do
    leaving[id], missing[id] = true, true
  end
  local old = redis.call('LRANGE', processing, at_first.length > 128 and -3 * #ids - 8 or 0, -1)
  local staying, unexplained, noted, met = sift(old, leaving)
  local waiting = {}
  for _, id in ipairs(unexplained) do
    -- Elsewhere, the entry may be that of a foreign client that has just taken the id.
    if noted[id] and waits_near_an_end(id) and not foreign_lease_left(id) then
      waiting[id], met[#met + 1] = true, id
    end
  end
  staying = without(staying, waiting)
  for _, id in ipairs(old) do
    missing[id] = nil
  end
  if not next(missing) and #staying + #ids == #old then
    -- All were among the oldest, as when items are completed in order: the others keep their places.
    redis.call('LTRIM', processing, 0, -#old - 1)
    in_chunks('RPUSH', processing, reversed(staying))
  else
    in_chunks('LPUSH', processing, staying)
    redis.call('LTRIM', processing, 0, -#old - 1)
  end
  if #old == at_first.length and not next(noted) then
    redis.call('UNLINK', gone) -- nothing that is noted is in the list
    return
  end
  local not_found = {}
  for id in pairs(missing) do
    not_found[#not_found + 1] = id
  end
  note(not_found)
  in_chunks('ZREM', gone, met)
end

-- Remove the oldest entries if they are these ids, in any order, as when items are completed in the order in
-- which they were leased; returns whether they were.
local function cut_oldest(ids)
  local wanted = set_of(ids)
  for _, id in ipairs(redis.call('LRANGE', processing, -#ids, -1)) do
    if not wanted[id] then return false end
    wanted[id] = nil
  end
  redis.call('LTRIM', processing, 0, -#ids - 1)
  return true
end

-- Remove ids from the list, after `check_processing`.
local function unlist(ids)
  if #ids == 0 or (at_first.noted == 0 and (#ids > 1 or at_first.length > 128) and cut_oldest(ids)) then
    return
  elseif at_first.noted == 0 and at_first.length <= 128 then
    unlist_or_note(ids)
  else
    unlist_old(ids)
  end
end
