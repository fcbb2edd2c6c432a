-- Name the keys and make the arguments of a script that is called for another
-- queue, which is in the same slot.
--
-- `call_add_items(keys_at(other, keys_of_add_items), arguments_at(other, rows))`: the linker puts the list of
-- the script's keys in place of `keys_of_add_items`. The called script has the caller's time.
--
-- Needs: nothing
-- Gives: keys_at, arguments_at
-- Uses: extend (lists), read_clock (read_clock)

-- Return the keys of a queue. `names`: what follows the queue's name in each.
local function keys_at(there, names)
  local keys = {}
  for i, name in ipairs(names) do
    keys[i] = there .. name
  end
  return keys
end

-- Return the arguments of a script that takes the queue's name, the time, and `values`: texts.
local function arguments_at(there, values)
  local arguments = { there, string.format('%.0f', read_clock()) }
  extend(arguments, values)
  return arguments
end
