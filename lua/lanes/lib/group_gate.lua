-- Decide how many items the limits and pauses of groups permit to be leased now.
--
-- Needs: prefix
-- Gives: group_gates
-- Uses: control_key (RARE_KEYS), gathering (gathering), lanes (lanes), append (lists)

-- Return the gate of each of some groups, which are read together; false: it has no limits.
local function group_gates(groups)
  local found, rates, gates, fields, own = lanes().read_control(), prefix .. ':rates', {}, {}, {}
  if not found.any_group or #groups == 0 then return {} end
  if found.any_own then
    for _, group in ipairs(groups) do
      append(fields, 'paused/' .. group, 'rate/' .. group, 'concurrency/' .. group)
    end
    own = redis.call('HMGET', control_key, unpack(fields))
  end
  local any_rate = found.any_own or found['rate/*']
  local used_till = any_rate and redis.call('ZMSCORE', rates, unpack(groups)) or {}
  for i, group in ipairs(groups) do
    local paused, rate, limit = unpack(own, 3 * i - 2, 3 * i)
    local till = lanes().paused_until(paused)
    if not gathering(group) then -- a limit of every group would cut batches
      rate, limit = rate or found['rate/*'], limit or found['concurrency/*']
    end
    if till then
      gates[i] = lanes().closed_gate(till)
    elseif group == '' or not (rate or limit) then
      gates[i] = false
    else
      gates[i] = lanes().open_gate()
      lanes().narrow_slots(gates[i], prefix .. ':running:' .. group, limit)
      lanes().narrow_rate(gates[i], rates, group, rate, used_till[i])
    end
  end
  return gates
end
