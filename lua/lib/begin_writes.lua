-- Make the first write of a script that must also work on a server that has reached its `maxmemory`.
--
-- Such a server refuses the first write of a script if the command may need memory, and no later one. So a
-- script that lets leased work continue, or frees memory, begins with a write that needs none and changes
-- nothing: it removes the key that never exists.
--
-- Needs: none
-- Gives: begin_writes

local function begin_writes() redis.call('UNLINK', none) end
