-- Gather the items of a group whose name says so: they wait until so many are there, or until the first of
-- them has waited for so long, and are leased together.
--
-- Such a group is `batch:<size>:<wait in ms>:<key>`. The places of its lane are times, and so is its turn:
-- when its batch is complete. What returns to the lane is in front, so a batch whose worker dies is a batch
-- again.
--
-- Needs: nothing
-- Gives: gathering, first_place, complete_at
-- Uses: GATHERING, LONGEST_GATHERING, MOST_GATHERED, PLACES_PER_MS (encodings), read_clock (read_clock)

-- Return how many items of a group are a batch, and for how many ms the first of them waits; nil: the group
-- does not gather.
local function gathering(group)
  local size, wait = string.match(group, GATHERING)
  if size then return math.min(tonumber(size), MOST_GATHERED), math.min(tonumber(wait), LONGEST_GATHERING) end
end

-- Return the place of an item that begins to gather now.
local function first_place() return read_clock() * PLACES_PER_MS end

-- Return when a batch is complete that has fewer items than its size. `place`: that of its first item, which
-- lies ahead if the clock has been set back since.
local function complete_at(place, wait)
  local began = tonumber(place) / PLACES_PER_MS
  return began > read_clock() + 1000 and read_clock() or math.floor(began + 0.5) + wait
end
