-- Remove the oldest ids from `processing` at once.
--
-- Needs: processing, gone
-- Gives: cut_oldest

-- Remove the oldest entries if they are these ids, in any order, as when items are completed in the order in which
-- they were leased; returns whether they were. While `gone` is not empty, none are removed.
local function cut_oldest(ids)
  if #ids == 0 or redis.call('EXISTS', gone) == 1 then
    return false
  end
  local wanted = {}
  for _, id in ipairs(ids) do
    wanted[id] = true
  end
  for _, id in ipairs(redis.call('LRANGE', processing, -#ids, -1)) do
    if not wanted[id] then
      return false
    end
    wanted[id] = nil
  end
  redis.call('LTRIM', processing, 0, -#ids - 1)
  return true
end
