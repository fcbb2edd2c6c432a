-- Name, read and drop dead letters. A dead letter exists if and only if its own key, a hash, does.
--
-- Needs: prefix, dead
-- Gives: dead_key, enter_dead, read_dead_letter, leave_dead
-- Uses: chunks_key, keeps_chunks (chunks), now (clock), in_chunks (keys), carried_by, drop_tags (tags)

local function dead_key(id) return prefix .. ':dead:' .. id end

-- Write a dead letter, replacing an older one of its id, or whatever else the key holds.
-- `carried`: the item's options as a text, or nil.
local function enter_dead(id, data, text, attempt, token, carried)
  local key = dead_key(id)
  redis.call('ZADD', dead, now, id) -- first, so that none exists that is not listed
  local fields = redis.pcall('HLEN', key)
  local before = carried_by(id)
  drop_tags(id, before, carried)
  if keeps_chunks(before, 'logged') and not keeps_chunks(carried, 'logged') then
    redis.call('UNLINK', chunks_key('logged', id))
  end
  if fields ~= 0 and fields ~= (carried and 5 or 4) then redis.call('UNLINK', key) end
  token = string.format('%.0f', token)
  redis.call('HSET', key, 'data', data, 'error', text, 'attempt', attempt, 'token', token)
  if carried then redis.call('HSET', key, 'options', carried) end
  redis.call('UNLINK', prefix .. ':result:' .. id) -- of an earlier item with this id
end

-- Return the number in a text; 0: there is none, or it cannot be read.
local function number_in(text) return tonumber(string.match(text or '', '^%d+$') or 0) end

-- Return the size of its data (-1: there is no such dead letter), data (false: more than `room`
-- bytes), error, attempt and token.
local function read_dead_letter(id, room)
  local key, data = dead_key(id), false
  local size = redis.call('HSTRLEN', key, 'data')
  if size == 0 and redis.call('HEXISTS', key, 'data') == 0 then
    size = -1
  elseif size <= room then
    data = redis.call('HGET', key, 'data')
  end
  local facts = redis.call('HMGET', key, 'error', 'attempt', 'token')
  return size, data, facts[1] or '', number_in(facts[2]), number_in(facts[3])
end

local function leave_dead(ids)
  local keys, logs = {}, {}
  for i, id in ipairs(ids) do
    keys[i] = dead_key(id)
    local text, other = carried_by(id), redis.call('HGET', options, id)
    drop_tags(id, text, other)
    if keeps_chunks(text, 'logged') and not keeps_chunks(other, 'logged') then
      logs[#logs + 1] = chunks_key('logged', id)
    end
  end
  in_chunks('UNLINK', nil, keys)
  in_chunks('UNLINK', nil, logs)
  in_chunks('ZREM', dead, ids)
end
