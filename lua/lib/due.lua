-- Find the next time at which an item falls due or a lease expires, and notify waiting processes of it.
--
-- A waiting process asks for that time when it begins to wait, and then every 5 s. It would notice an earlier
-- time too late, so the script that creates one publishes it on the channel `:due`. If many wait, some are
-- notified, each on its channel, and some are told when they ask: else each item that falls due would cost a
-- call of each of them. If all of these are gone or full, the next session that registers finds it overdue.
--
-- Needs: prefix, deadlines, scheduled
-- Gives: next_due_in, count_askers, announce
-- Uses: ASK_WHEN_DUE, IDLE_LEASES, IDLE_UNIT_MS (encodings), read_clock (read_clock)

-- Return ms until the first lease expires or the first scheduled item falls due; -1: none will. Part of a ms
-- counts as one, so that a process does not ask again at once.
local function next_due_in()
  local first = -1
  for _, key in ipairs({ deadlines, scheduled }) do
    local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if head[2] then
      local wait = tonumber(head[2]) - read_clock()
      wait = wait > 0 and math.max(1, wait) or 0
      first = (first < 0) and wait or math.min(first, wait)
    end
  end
  return first
end

-- Return the least score in `idle` of a registration that holds.
local function from_now() return string.format('(%.0f', read_clock() / IDLE_UNIT_MS * IDLE_LEASES) end

-- Return how many sessions can lease what falls due: those that have room for an item, or all that wait if
-- none says so.
local function count_askers()
  local free = redis.pcall('ZCOUNT', prefix .. ':idle', from_now(), '+inf')
  if type(free) ~= 'number' or free == 0 then free = redis.pcall('ZCARD', prefix .. ':sessions') end
  return type(free) == 'number' and free or 0
end

-- Publish when to ask to some of the sessions that wait.
local function notify_some(text)
  local found = redis.pcall('ZRANGEBYSCORE', prefix .. ':idle', from_now(), '+inf', 'LIMIT', 0, 100)
  if not found[1] then found = redis.pcall('ZRANGE', prefix .. ':sessions', 0, 99) end
  local notified = 0
  for _, member in ipairs(found) do
    local heard = redis.pcall('PUBLISH', prefix .. ':push:' .. string.gsub(member, '^%x+@', ''), text)
    if heard ~= 0 then notified = notified + 1 end
    if notified == ASK_WHEN_DUE then return end
  end
end

-- Notify waiting processes that a lease which was just written expires, or an item falls due, in `soonest`
-- ms. If another is earlier, they ask at that time, and learn of this one then.
local function announce(soonest)
  if not soonest or soonest > 6000 or next_due_in() ~= soonest then return end
  local text = string.format('%.0f', soonest)
  -- If the access rules forbid it, waiting processes notice it late; the script must not fail.
  if count_askers() <= ASK_WHEN_DUE then
    redis.pcall('PUBLISH', prefix .. ':due', text)
  else
    notify_some('due ' .. text)
  end
end
