-- Find the next time at which an item falls due or a lease expires, and notify waiting processes of it.
--
-- A waiting process asks for that time when it begins to wait, and then every 5 s. It would notice an earlier
-- time too late, so the script that creates one publishes it on the channel `:due`. If many wait, some are
-- notified, each on its channel, and some are told when they ask: else each item that falls due would cost a
-- call of each of them. If all of these are gone or full, the next session that registers finds it overdue.
--
-- Needs: prefix, deadlines, scheduled
-- Gives: next_due_in, announce
-- Uses: have_ask (askers), read_clock (read_clock)

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

-- Notify waiting processes that a lease which was just written expires, or an item falls due, in `soonest`
-- ms. If another is earlier, they ask at that time, and learn of this one then.
local function announce(soonest)
  if not soonest or soonest > 6000 or next_due_in() ~= soonest then return end
  have_ask(prefix, soonest)
end
