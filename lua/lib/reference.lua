-- Read the reference that the item of a stage carries: which stage of which flow run it is.
--
-- Needs: nothing
-- Gives: split_reference

-- Return the parts of a reference of a stage: the prefix of the run's home queue, the run's id, and the stage's path; nil if
-- it is none.
local function split_reference(reference)
  local first = string.find(reference, '\0', 1, true)
  local second = first and string.find(reference, '\0', first + 1, true)
  if second then
    return string.sub(reference, 1, first - 1),
      string.sub(reference, first + 1, second - 1),
      string.sub(reference, second + 1)
  end
end
