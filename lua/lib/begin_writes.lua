-- The first write of a script that must also run on a server that is at its `maxmemory`.
--
-- Such a server refuses the first write of a script if the command may need memory, and no later one. What
-- lets leased work go on, or frees memory, therefore begins with a write that needs none and changes nothing.
--
-- Needs: deadlines
-- Gives: begin_writes

local function begin_writes()
  redis.call('ZREM', deadlines, '')
end
