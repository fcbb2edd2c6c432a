-- Read the reference that the item of a stage carries: which stage of which flow run it is.
--
-- Needs: nothing
-- Gives: split_reference

-- Return the parts of a reference: the prefix of the run's home queue, the run's id, and the stage's path; nil if it is none.
local function split_reference(reference)
  return string.match(reference, '^(%Z+)%z(%Z+)%z(.*)$')
end
