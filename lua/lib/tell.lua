-- Telling the kept events what became of items: an entry of the stream for each arrow of the picture.
--
-- Off unless there is the hash `:events:keep`: how many events are kept, for how long, and the number of the
-- last one. The entries' ids are numbers without a gap, so a reader knows whether it has missed any.
--
-- Needs: prefix, now_ms, events
-- Gives: telling, tell, tell_all, told

local keep_key = prefix .. ':events:keep'
-- Read before anything is written, as all keys are.
local keep = redis.call('HMGET', keep_key, 'last', 'count', 'age_ms')
local telling = keep[1]
local number, told_at, news = tonumber(keep[1] or 0), nil, 0
if telling then
  redis.call('XLEN', events)
  local time = now_ms or redis.call('TIME')
  told_at = now_ms or time[1] * 1000 + math.floor(time[2] / 1000)
end

-- `fields`: what else there is to say of it. All are written, in one order: then the server keeps their
-- names only once in a while.
local function tell(what, id, fields)
  news = news + 1
  local entry = { 'what', what, 'id', id, 'time', string.format('%.0f', told_at) }
  for i, name in ipairs({ 'holder', 'token', 'deliveries', 'size', 'due', 'front', 'error' }) do
    local value = fields[name] or ''
    entry[5 + 2 * i] = name
    entry[6 + 2 * i] = type(value) == 'number' and string.format('%.0f', value) or value
  end
  redis.call('XADD', events, string.format('%.0f-1', number + news), unpack(entry))
end

-- The same of many, in the order in which they were put into the queue. `front`: '1' or nothing.
local function tell_all(what, ids, front)
  if telling then
    for i = 1, #ids do
      tell(what, ids[front and #ids + 1 - i or i], { front = front })
    end
  end
end

-- At the end of a step: cut off what is too much or too old, and wake those who follow.
local function told()
  if news == 0 then
    return
  end
  local last, age_ms = string.format('%.0f', number + news), tonumber(keep[3])
  redis.call('HSET', keep_key, 'last', last)
  if keep[2] ~= '0' then
    redis.call('XTRIM', events, 'MAXLEN', '~', keep[2])
  end
  if age_ms > 0 then
    -- More than came now: so what is too old gets less with every step.
    for _, entry in ipairs(redis.call('XRANGE', events, '-', '+', 'COUNT', 2 * news + 8)) do
      if tonumber(entry[2][6]) > told_at - age_ms then
        break
      end
      redis.call('XDEL', events, entry[1])
    end
    redis.call('PEXPIRE', events, age_ms)
  end
  redis.pcall('PUBLISH', events, last)
end
