-- Notify sessions that wait without a blocking move that they have to look for items: those of a queue with
-- shards, which has no clients of other libraries, and most of those that wait for one queue if many do.
--
-- Such a session is in `idle` with a lease time of 0 or with `LOOKS_MARK`. It gets `look <word>`, with the
-- word of its registration, which ends; a message that is lost costs seconds, as it looks by itself after a
-- while.
--
-- Needs: nothing
-- Gives: have_look
-- Uses: ASK_WHEN_DUE, BRACE, IDLE_LEASES, LOOKS_MARK (encodings)

-- Have up to `most` sessions of a queue look, those that wait longest first. The names of shards begin with a
-- brace. In another queue a single item wakes a session that makes a blocking move, unless such a session has
-- just returned it, or another item waits already, as none makes one now.
local function have_look(name, most, was_returned)
  if most == 0 then return end
  local wakes_mover = most == 1 and not was_returned and string.byte(name) ~= BRACE
  if wakes_mover and redis.call('LLEN', name .. ':queue') < 2 then return end
  local key, left = name .. ':idle', math.min(most, 100)
  -- Some of them may be blocked.
  local found = redis.pcall('ZRANGE', key, 0, left + 2 * ASK_WHEN_DUE - 1, 'WITHSCORES')
  for i = 2, #found, 2 do
    local lease_time = tonumber(found[i]) % IDLE_LEASES
    if lease_time == 0 or lease_time % 2 == LOOKS_MARK then
      redis.call('ZREM', key, found[i - 1])
      local sign, whose = string.match(found[i - 1], '^(%x+)@(.*)$')
      if sign then redis.pcall('PUBLISH', name .. ':push:' .. whose, 'look ' .. sign) end
      left = left - 1
      if left == 0 then return end
    end
  end
end
