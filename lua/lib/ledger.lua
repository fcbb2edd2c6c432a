-- What the ledger holds of an item: "<first lease> <last lease> <attempt> <last delivery, ms>".
--
-- It begins with the first lease of an incarnation and ends with its completion, so a token
-- belongs to the incarnation that lives now if and only if it lies between first and last.
--
-- Needs: nothing
-- Gives: read_ledger

local function read_ledger(entry)
  if not entry then
    return nil
  end
  local first, last, attempt, at = string.match(entry, '^(%d+) (%d+) (%d+) (%d+)')
  return tonumber(first), tonumber(last), tonumber(attempt), tonumber(at)
end
