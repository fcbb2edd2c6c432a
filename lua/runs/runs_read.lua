-- Return flow runs and the states of their stages, without their children: see `run_fields`.
--
-- Keys: queue
-- Arguments:
--   prefix     text     the home queue's name
--   max_bytes  integer  return attributes and results until they have so many bytes; 0: none
--   entries    rest     run ids
-- Reply: an entry per id: false: there is no such run; 0: not read, nor any after it: ask again; else a list
--   of `flow`, `state`, `created`, `ended`, `keep`, `correlation`, `level`, `trace`, `active`, `error`,
--   `result`, `lookup`, `parent`, `attributes` and `stages` of its hash; a list of the attributes, `a:`, and
--   the results of the stages, `r:` (empty: they do not fit, or there are none); and then, unless it has
--   more than 250 stages, `s:`, `e:`, `t:`, `j:` and `m:` of each of them (false: the hash does not have it).
-- Cost: O(1) per run and stage.
-- Limits: at most 1,000 ids a call; after 250 stages no more runs are read.
-- Uses: read_in_chunks (keys), extend (lists)

redis.call('LLEN', queue) -- a cluster finds the node by a key of the script

-- stylua: ignore
local facts = { 'flow', 'state', 'created', 'ended', 'keep', 'correlation', 'level', 'trace', 'active',
  'error', 'result', 'lookup', 'parent', 'attributes', 'stages' }

local of_stage, of_attribute, of_result = { 's:', 'e:', 't:', 'j:', 'm:' }, { 'a:' }, { 'r:' }

-- Return the names of fields of some kinds, for the names in a JSON list; none if these are too many.
local function fields_of(names, kinds)
  local is_json, found = pcall(cjson.decode, names or '[]')
  local fields = {}
  found = is_json and type(found) == 'table' and #found <= 250 and found or {}
  for _, stage in ipairs(found) do
    stage = type(stage) == 'string' and stage or '' -- else another client has written it
    for _, kind in ipairs(kinds) do
      fields[#fields + 1] = kind .. stage
    end
  end
  return fields
end

local left = max_bytes

-- Return the attributes and the results of a run, if they fit into what is left.
local function values_of(key, attributes, names)
  local fields, bytes = fields_of(attributes, of_attribute), 0
  extend(fields, fields_of(names, of_result))
  for _, field in ipairs(left > 0 and fields or {}) do
    bytes = bytes + redis.call('HSTRLEN', key, field)
  end
  if bytes >= left then return {} end
  left = left - bytes
  return read_in_chunks('HMGET', key, fields)
end

local reply, stages = {}, 0
for row = entries + 1, #ARGV do
  local key, answer = prefix .. ':run:' .. ARGV[row], 0
  if stages < 250 then
    answer = redis.call('HMGET', key, unpack(facts))
    if answer[2] then
      local fields = fields_of(answer[#facts], of_stage)
      answer[#facts + 1] = values_of(key, answer[#facts - 1], answer[#facts])
      extend(answer, read_in_chunks('HMGET', key, fields))
      stages = stages + 1 + #fields / 5
    else
      answer = false
    end
  end
  reply[#reply + 1] = answer
end
return reply
