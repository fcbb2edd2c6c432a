-- Emit events: add an entry to the stream for each item that moves from one state to another.
--
-- They are written by `flush`, after the state: a failure then costs events, which readers notice, and no item.
--
-- Events are kept only while there is the hash `:events:keep`: how many events are kept, for how long, and
-- the number of the last one. The numbers have no gap, so a reader knows whether it has missed an event.
--
-- Needs: events
-- Gives: emitting, emit, emit_all, flush

-- Read before anything is written, as all keys are.
local emitting = any_rare and redis.call('EXISTS', keep_hash) == 1
local function nothing() end
local emit, emit_all, flush = nil, nothing, nothing -- call `emit` only if `emitting`

-- If no events are kept, the functions are not created: that would take a few per cent of a call for one item.
if emitting then
  local keep = redis.call('HMGET', keep_hash, 'last', 'count', 'age_ms')
  local number, emitted = tonumber(keep[1]), {}
  redis.call('XLEN', events)

  local function id_of(event)
    return string.format('%.0f-1', event)
  end

  -- Return all fields with their names, in the same order, so that the server stores their names only once per node of
  -- the stream. A table or a loop would take twice the time.
  local function fields_of(event)
    local fields = event[3]
    -- stylua: ignore
    return 'what', event[1], 'id', event[2], 'time', read_clock(),
      'holder', fields.holder or '', 'token', fields.token or '', 'attempt', fields.attempt or '',
      'size', fields.size or '', 'due', fields.due or '', 'front', fields.front or '', 'error', fields.error or ''
  end

  -- Write an event; returns whether it was written.
  local function write(place, event)
    local at, details = id_of(number + place), event[3].details
    local reply
    if details then
      reply = redis.pcall('XADD', events, at, 'details', cjson.encode(details), fields_of(event))
    else
      reply = redis.pcall('XADD', events, at, fields_of(event))
    end
    return type(reply) == 'string'
  end

  -- Emit an event with fields beside those that all events have. `details`: a table of the fields that few events have.
  -- The id of an event of the queue is ''.
  function emit(what, id, fields)
    emitted[#emitted + 1] = { what, id, fields }
  end

  -- Emit an event for each id, in the order in which they were put into the queue. `front`: '1' or nothing.
  function emit_all(what, ids, front)
    for i = 1, #ids do
      emit(what, ids[front and #ids + 1 - i or i], { front = front })
    end
  end

  -- Remove events that are too old, but not many more than this script has emitted, so that no script takes long
  -- and their number still falls.
  local function cut_old(kept_ms)
    local function is_old(entry)
      local place = entry and entry[2][1] == 'details' and 8 or 6
      return entry and tonumber(entry[2][place]) <= read_clock() - kept_ms
    end
    local oldest = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
    if not is_old(oldest) then
      return
    end
    -- Search between an event that is too old and one that stays in any case.
    local old = tonumber(string.match(oldest[1], '^%d+'))
    local newer = old + 2 * #emitted + 8
    while newer - old > 1 do
      local middle = math.floor((old + newer) / 2)
      if is_old(redis.call('XRANGE', events, id_of(middle), '+', 'COUNT', 1)[1]) then
        old = middle
      else
        newer = middle
      end
    end
    redis.call('XTRIM', events, 'MINID', id_of(newer))
  end

  -- Call this at the end of a script: it removes events beyond the bounds, and notifies followers.
  function flush()
    if #emitted > 0 then
      for place, event in ipairs(emitted) do
        if not write(place, event) then
          -- The number is in use if an error has ended a script between writing its events and writing `last`.
          local entry = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
          local newest_number = entry and tonumber(string.match(entry[1], '^%d+')) or 0
          number = math.max(number, newest_number + 1 - place)
          write(place, event)
        end
      end
      local last, kept_ms = string.format('%.0f', number + #emitted), tonumber(keep[3])
      redis.call('HSET', keep_hash, 'last', last)
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
