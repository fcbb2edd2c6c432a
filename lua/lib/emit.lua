-- Telling the kept events what became of items: an entry of the stream for each arrow of the picture.
--
-- Off unless there is the hash `:events:keep`: how many events are kept, for how long, and the number of the
-- last one. The entries' ids are numbers without a gap, so a reader knows whether it has missed any.
--
-- Needs: prefix, now_ms, events
-- Gives: emitting, emit, emit_all, flush

local keep_key = prefix .. ':events:keep'
-- Read before anything is written, as all keys are.
local emitting = redis.call('EXISTS', keep_key) == 1
local function nothing() end
local emit, emit_all, flush = nil, nothing, nothing -- `emit` is called where `emitting`

-- Where nothing is kept, not even the functions are made: that takes a few per cent of a call for one item.
if emitting then
  local keep = redis.call('HMGET', keep_key, 'last', 'count', 'age_ms')
  local number, news = tonumber(keep[1]), 0
  redis.call('XLEN', events)
  local time = now_ms or redis.call('TIME')
  local stamp = now_ms or time[1] * 1000 + math.floor(time[2] / 1000)

  local function id_of(event)
    return string.format('%.0f-1', event)
  end

  -- All fields are written, in one order: then the server keeps their names only once in a while. Without a
  -- table or a loop it takes half the time. `pcall`: `redis.pcall`, or `redis.call` to raise what it says.
  local function write(pcall, what, id, fields)
    -- stylua: ignore
    return pcall('XADD', events, id_of(number + news),
      'what', what, 'id', id, 'time', stamp,
      'holder', fields.holder or '', 'token', fields.token or '', 'attempt', fields.attempt or '',
      'size', fields.size or '', 'due', fields.due or '', 'front', fields.front or '', 'error', fields.error or '')
  end

  -- `fields`: what else there is to say of it.
  function emit(what, id, fields)
    news = news + 1
    if type(write(redis.pcall, what, id, fields)) == 'table' then
      -- The number is taken if an error ended a step between its events and the writing down of `last`.
      local entry = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
      number = math.max(number, entry and tonumber(string.match(entry[1], '^%d+')) + 1 - news or 0)
      write(redis.call, what, id, fields)
    end
  end

  -- The same of many, in the order in which they were put into the queue. `front`: '1' or nothing.
  function emit_all(what, ids, front)
    for i = 1, #ids do
      emit(what, ids[front and #ids + 1 - i or i], { front = front })
    end
  end

  -- Cut off what is too old, but not much more than came now: so it gets less with every step, and none is
  -- long.
  local function cut_old(kept_ms)
    local function is_old(entry)
      return entry and tonumber(entry[2][6]) <= stamp - kept_ms
    end
    local oldest = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
    if not is_old(oldest) then
      return
    end
    -- The border is sought between one that is too old and one that stays, at least for now.
    local old = tonumber(string.match(oldest[1], '^%d+'))
    local stays = old + 2 * news + 8
    while stays - old > 1 do
      local middle = math.floor((old + stays) / 2)
      if is_old(redis.call('XRANGE', events, id_of(middle), '+', 'COUNT', 1)[1]) then
        old = middle
      else
        stays = middle
      end
    end
    redis.call('XTRIM', events, 'MINID', id_of(stays))
  end

  -- At the end of a step: cut off what is too much or too old, and wake those who follow.
  function flush()
    if news > 0 then
      local last, kept_ms = string.format('%.0f', number + news), tonumber(keep[3])
      redis.call('HSET', keep_key, 'last', last)
      if keep[2] ~= '0' then
        redis.call('XTRIM', events, 'MAXLEN', '~', keep[2])
      end
      if kept_ms > 0 then
        cut_old(kept_ms)
        redis.call('PEXPIRE', events, kept_ms)
      end
      redis.pcall('PUBLISH', events, last)
    end
  end
end
