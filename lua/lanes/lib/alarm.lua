-- Have another session ask when time permits more of a limit, if the one that was to ends.
--
-- Needs: prefix
-- Gives: drop_alarm
-- Uses: lanes (lanes)

local function drop_alarm(holder)
  local _, who = lanes().read_alarm(0)
  if who == holder then redis.call('UNLINK', prefix .. ':alarm') end
end
