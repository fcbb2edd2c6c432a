-- Find out whether another queue is in a format that this version does not know, so that it is left alone.
--
-- Needs: prefix
-- Gives: newer_format
-- Uses: too_new_key (RARE_KEYS)

-- What is known already, by queue; most calls need no table.
local newer_formats

-- Return the text of the error for another queue; false: it can be used. If the access rules forbid to look,
-- the calls that follow find that out.
local function newer_format(there)
  if there == prefix then return false end
  newer_formats = newer_formats or {}
  if newer_formats[there] == nil then
    local text = redis.pcall('GET', there .. string.sub(too_new_key, #prefix + 1))
    newer_formats[there] = type(text) == 'string' and 'FORMATTOONEW ' .. text .. ' ' .. there
  end
  return newer_formats[there]
end
