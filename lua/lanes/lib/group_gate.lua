-- Decide how many items the limits and pauses of a group permit to be leased now.
--
-- Needs: prefix
-- Gives: group_gate
-- Uses: control_key (RARE_KEYS), gathering (gathering), lanes (lanes)

-- Return the gate of a group; nil: it has no limits.
local function group_gate(group)
  local found = lanes().read_control()
  if group == '' or not found.any_group then return nil end
  local own = { 'paused/' .. group, 'rate/' .. group, 'concurrency/' .. group }
  local paused, rate, limit = unpack(found.any_own and redis.call('HMGET', control_key, unpack(own)) or {})
  local till = lanes().paused_until(paused)
  if till then return lanes().closed_gate(till) end
  if not gathering(group) then -- a limit of every group would cut batches
    rate, limit = rate or found['rate/*'], limit or found['concurrency/*']
  end
  if not (rate or limit) then return nil end
  local gate = lanes().open_gate()
  lanes().narrow(gate, rate, prefix .. ':rates', group, limit, prefix .. ':running:' .. group)
  return gate
end
