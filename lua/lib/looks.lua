-- Notify sessions that wait without a blocking move that they have to look for items: those of a queue with
-- shards, which has no clients of other libraries.
--
-- Such a session is in `idle` with a lease time of 0. It gets `look <word>`, with the word of its
-- registration, which ends; a message that is lost costs seconds, as it looks by itself after a while.
--
-- Needs: nothing
-- Gives: have_look
-- Uses: BRACE, IDLE_LEASES (encodings)

-- Have up to `most` sessions of a queue look, those that wait longest first. The names of shards begin with a
-- brace, so other queues pay for no read.
local function have_look(name, most)
  if most == 0 or string.byte(name) ~= BRACE then return end
  local key = name .. ':idle'
  local found = redis.pcall('ZRANGE', key, 0, math.min(most, 100) - 1, 'WITHSCORES')
  for i = 2, #found, 2 do
    if tonumber(found[i]) % IDLE_LEASES == 0 then
      redis.call('ZREM', key, found[i - 1])
      local sign, whose = string.match(found[i - 1], '^(%x+)@(.*)$')
      if sign then redis.pcall('PUBLISH', name .. ':push:' .. whose, 'look ' .. sign) end
    end
  end
end
