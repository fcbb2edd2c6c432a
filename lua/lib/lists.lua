-- Read and make lists as commands and calls take and return them.
--
-- Needs: nothing
-- Gives: values_from, paired, scored, set_of, append, extend, reversed

-- Return the values of a list from a place on: all, or each `stride`-th.
local function values_from(list, first, stride)
  local found = {}
  for i = first, #list, stride or 1 do
    found[#found + 1] = list[i]
  end
  return found
end

-- Return the first and the second ones of pairs that follow each other in a list.
local function paired(list) return values_from(list, 1, 2), values_from(list, 2, 2) end

-- Return members with one score, as ZADD takes them.
local function scored(score, members)
  local entries_ = {}
  for i, member in ipairs(members) do
    entries_[2 * i - 1], entries_[2 * i] = score, member
  end
  return entries_
end

-- Return a set of values: value -> true.
local function set_of(values)
  local found = {}
  for _, value in ipairs(values) do
    found[value] = true
  end
  return found
end

-- Put values at the end of a list.
local function append(list, ...)
  local length = #list
  for i = 1, select('#', ...) do
    list[length + i] = (select(i, ...))
  end
end

local function extend(list, values)
  for i = 1, #values do
    list[#list + 1] = values[i]
  end
end

local function reversed(values)
  local turned = {}
  for i = #values, 1, -1 do
    turned[#turned + 1] = values[i]
  end
  return turned
end
