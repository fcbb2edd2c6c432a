-- Note what a script has repaired, for its reply.
--
-- Needs: nothing
-- Gives: repairs, repaired, repaired_all

local repairs = {}

-- Note a repair: its kind (see `leasequeue.queue.findings`), and the id or the name that it was made for.
local function repaired(kind, name)
  repairs[#repairs + 1], repairs[#repairs + 2] = kind, name
end

local function repaired_all(kind, names)
  for _, name in ipairs(names) do
    repaired(kind, name)
  end
end
