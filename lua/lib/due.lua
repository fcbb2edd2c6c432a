-- What falls due next, and telling it to those who wait.
--
-- A waiting process asks what falls due when it begins to wait and every 5 s from then on. What is due
-- sooner than that would be found late, so it is announced on the channel `:due`.
--
-- Needs: prefix, deadlines, scheduled
-- Gives: next_due_in, announce

-- ms until the first lease ends or the first delayed item falls due; -1: nothing will. Part of a ms
-- counts as one, so that nobody asks again at once for it.
local function next_due_in()
  local first = -1
  for _, key in ipairs({ deadlines, scheduled }) do
    local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if head[2] then
      local wait = tonumber(head[2]) - now
      wait = wait > 0 and math.max(1, wait) or 0
      first = (first < 0) and wait or math.min(first, wait)
    end
  end
  return first
end

-- `soonest`: in how many ms the first of what was just written down falls due. If something else is
-- earlier, whoever knows of that asks then, and is told of this.
local function announce(soonest)
  if soonest and soonest <= 6000 and next_due_in() == soonest then
    -- Where the access rules forbid it, those who wait find it late; the step itself is not to fail.
    redis.pcall('PUBLISH', prefix .. ':due', string.format('%.0f', soonest))
  end
end
