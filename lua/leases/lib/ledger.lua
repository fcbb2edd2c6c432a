-- Read an entry of the ledger: "<first token> <last token> <attempt> <when last leased, ms>".
--
-- An entry begins with the first lease of an incarnation and is removed with its completion. So a token
-- belongs to the current incarnation if and only if it lies between the first and the last.
--
-- Needs: nothing
-- Gives: read_ledger

local function read_ledger(entry)
  if not entry then return nil end
  local first, last, attempt, at = string.match(entry, '^(%d+) (%d+) (%d+) (%d+)')
  return tonumber(first), tonumber(last), tonumber(attempt), tonumber(at)
end
