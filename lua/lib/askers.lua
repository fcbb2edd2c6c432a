-- Have sessions that wait for items ask for them, at a time.
--
-- Needs: nothing
-- Gives: count_askers, have_ask
-- Uses: ASK_WHEN_DUE, IDLE_LEASES, IDLE_UNIT_MS (encodings), read_clock (read_clock)

-- Return the least score in `idle` of a registration that holds.
local function from_now() return string.format('(%.0f', read_clock() / IDLE_UNIT_MS * IDLE_LEASES) end

-- Return how many sessions can lease what falls due in a queue: those that have room for an item, or all that
-- wait if none says so.
local function count_askers(name)
  local free = redis.pcall('ZCOUNT', name .. ':idle', from_now(), '+inf')
  if type(free) ~= 'number' or free == 0 then free = redis.pcall('ZCARD', name .. ':sessions') end
  return type(free) == 'number' and free or 0
end

-- Publish when to ask to some of the sessions that wait.
local function notify_some(name, text)
  local found = redis.pcall('ZRANGEBYSCORE', name .. ':idle', from_now(), '+inf', 'LIMIT', 0, 100)
  if not found[1] then found = redis.pcall('ZRANGE', name .. ':sessions', 0, 99) end
  local notified = 0
  for _, member in ipairs(found) do
    local heard = redis.pcall('PUBLISH', name .. ':push:' .. string.gsub(member, '^%x+@', ''), text)
    if heard ~= 0 then notified = notified + 1 end
    if notified == ASK_WHEN_DUE then return end
  end
end

-- Notify sessions that wait for items of a queue to ask in `wait` ms.
local function have_ask(name, wait)
  local text = string.format('%.0f', wait)
  -- If the access rules forbid it, waiting processes notice it late; the script must not fail.
  if count_askers(name) <= ASK_WHEN_DUE then
    redis.pcall('PUBLISH', name .. ':due', text)
  else
    notify_some(name, 'due ' .. text)
  end
end
