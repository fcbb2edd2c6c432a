-- Index items and dead letters by their tags.
--
-- `P:tags` has an entry for a tag and an id if and only if the options of the unfinished item, or of the dead
-- letter, have this tag. Where no item has tags, nothing is written.
--
-- Needs: prefix
-- Gives: tags_in, carried_by, note_tags, drop_tags, leave_tags
-- Uses: tags_key (RARE_KEYS)

local no_tags = {}

-- Return the tags in options, as a text or what a read of them has returned.
local function tags_in(text)
  if not (type(text) == 'string' and string.find(text, '"tags"', 1, true)) then return no_tags end
  local its_tags = {}
  local is_json, found = pcall(cjson.decode, text)
  local given = is_json and type(found) == 'table' and found.tags
  for _, tag in ipairs(type(given) == 'table' and given or {}) do
    if type(tag) == 'string' and tag ~= '' and not string.find(tag, '%z') then
      its_tags[#its_tags + 1] = tag
    end
  end
  return its_tags
end

-- Return the options of a dead letter, as a text; false or an error: it has none.
local function carried_by(id) return redis.pcall('HGET', prefix .. ':dead:' .. id, 'options') end

local function note_tags(id, text)
  for _, tag in ipairs(tags_in(text)) do
    redis.call('ZADD', tags_key, 0, tag .. '\0' .. id)
  end
end

-- Drop the tags of options that are removed. `other`: those of the dead letter or of the item with the same
-- id, which keep their tags. `key`: that of another queue.
local function drop_tags(id, text, other, key)
  local tags, kept = tags_in(text), {}
  if #tags == 0 then return end
  for _, tag in ipairs(tags_in(other)) do
    kept[tag] = true
  end
  for _, tag in ipairs(tags) do
    if not kept[tag] then redis.call('ZREM', key or tags_key, tag .. '\0' .. id) end
  end
end

-- Drop the tags of an item's options. Its dead letter keeps those that it has.
local function leave_tags(id, text)
  if tags_in(text)[1] then drop_tags(id, text, carried_by(id)) end
end
