-- Read the reference that the item of a stage carries: which stage of which flow run it is.
--
-- Needs: nothing
-- Gives: split_reference

-- Return the parts of a reference: the prefix of the run's home queue, the run's id, the stage's path,
-- and the run's mark (empty: it has none, and means any run of this id), and what a caller says beside
-- it; nil if it is no reference.
local function split_reference(reference)
  return string.match(reference, '^(%Z+)%z(%Z+)%z(%Z*)%z?(%Z*)%z?(%Z*)$')
end
