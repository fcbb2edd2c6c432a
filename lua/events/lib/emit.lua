-- Emit events: for each item that moves from one state to another, and for what
-- concerns the queue or a worker.
--
-- `flush` writes them, after the state: a failure then costs events, which readers notice, and no item.
-- Events are kept in the stream `:events`, or published on the channel `:live`, or both.
--
-- There are events only while there is the hash `:events:keep`: how many are kept (`count`), for how long
-- (`age_ms`; both 0: none), how they are published (`live`), and the number of the last one. The numbers have
-- no gap, so a reader knows whether it has missed an event. If the field `rollup` is 1, some kinds are
-- counted in the history of the queue, whether events are kept or not.
--
-- Needs: events
-- Gives: emitting, publishes, emit, emit_all, flush
-- Uses: history_key (RARE_KEYS), COUNT_DIGITS, ROLLUP_RUNS (encodings), publish_live (live), any_rare (rare),
--   read_clock (read_clock), add_to_rollups, bucket_of (rollup)

-- Read before anything is written, as all keys are.
-- What another client has written there and cannot be read counts as no events: see `fsck_types`.
local emitting = any_rare and redis.call('EXISTS', history_key) == 1
local keep = emitting and redis.call('HMGET', history_key, 'last', 'count', 'age_ms', 'live', 'rollup')
for i = 1, keep and 3 or 0 do
  emitting = emitting and #(keep[i] or '') <= COUNT_DIGITS and string.find(keep[i] or '', '^%d+$') ~= nil
end
local function nothing() end
local emit, emit_all, flush = nil, nothing, nothing -- call `emit` only if `emitting`
local publishes -- how events are published: see `publish_live`; else false or nil

-- If there are no events, the functions are not created: that would take a few
-- per cent of a call for one item.
if emitting then
  local number, emitted, kept = tonumber(keep[1]), {}, keep[2] ~= '0' or keep[3] ~= '0'
  publishes = keep[4] ~= '' and keep[4]
  redis.call('XLEN', events)
  local counts = keep[5] == '1' and {}

  -- Count an event of a kind that the history has, and how long the run took that it ends.
  local function count_event(what, entry)
    local slots = { added = 0, completed = 1, failed = 2, died = 3, expired = 4, reclaimed = 4 }
    local function add(slot) counts[slot] = (counts[slot] or 0) + 1 end
    if slots[what] then add(slots[what]) end
    if what == 'died' then add(slots.failed) end
    local leased_at = entry and tonumber(string.match(entry, '^%d+ %d+ %d+ (%d+)') or '')
    if leased_at then add(ROLLUP_RUNS + bucket_of(read_clock() - leased_at)) end
  end

  local function id_of(event) return string.format('%.0f-1', event) end

  -- Return all fields with their names, in the same order, so that the server stores their names only once
  -- per node of the stream. A table or a loop would take twice the time.
  local function fields_of(event)
    local fields = event[3]
    -- stylua: ignore
    return 'what', event[1], 'id', event[2], 'time', read_clock(),
      'holder', fields.holder or '', 'token', fields.token or '', 'attempt', fields.attempt or '',
      'size', fields.size or '', 'due', fields.due or '',
      'front', fields.front or '', 'error', fields.error or ''
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

  -- Emit an event with fields beside those that all events have. `details`: a table of the fields that few
  -- events have. The id of an event of the queue is ''. `entry`: that of the ledger, if a run has ended.
  function emit(what, id, fields, entry)
    if counts then count_event(what, entry) end
    emitted[#emitted + 1] = { what, id, fields }
  end

  -- Emit an event for each id, in the order in which they were put into the queue. `front`: '1' or nothing.
  function emit_all(what, ids, front)
    for i = 1, #ids do
      emit(what, ids[front and #ids + 1 - i or i], { front = front })
    end
  end

  -- Remove events that are too old, but not many more than this script has emitted, so that no script takes
  -- long and their number still falls.
  local function cut_old(kept_ms)
    local function is_old(entry)
      local place = entry and entry[2][1] == 'details' and 8 or 6
      return entry and (tonumber(entry[2][place] or '') or 0) <= read_clock() - kept_ms
    end
    local oldest = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)[1]
    if not is_old(oldest) then return end
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

  -- Write the events to the stream.
  local function keep_all()
    for place, event in ipairs(emitted) do
      if not write(place, event) then
        -- The number is in use if an error has ended a script between writing its events and writing `last`.
        local entry = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
        local newest_number = entry and tonumber(string.match(entry[1], '^%d+')) or 0
        number = math.max(number, newest_number + 1 - place)
        write(place, event)
      end
    end
  end

  -- Remove events beyond the bounds.
  local function trim()
    local kept_ms = tonumber(keep[3])
    if keep[2] ~= '0' then redis.call('XTRIM', events, 'MAXLEN', '~', keep[2]) end
    if kept_ms > 0 then
      cut_old(kept_ms)
      redis.call('PEXPIRE', events, kept_ms)
    end
  end

  -- Publish the events, up to 250 in a message. Readers that miss one see it by the numbers.
  local function publish()
    local left = 1048576
    for from = 1, #emitted, 250 do
      local message = {}
      for place = from, math.min(from + 249, #emitted) do
        local event = emitted[place]
        local fields = event[3]
        fields.what, fields.id, fields.time = event[1], event[2], read_clock()
        local size = fields.result and #fields.result or 0
        if size > 65536 or size > left then
          fields.result, fields.result_size = nil, size
        end
        left = left - (fields.result and size or 0)
        local token = tonumber(fields.token)
        -- JSON has 14 digits of a number here; tokens have more after their counter was lost.
        fields.token = token and token >= 1e14 and string.format('%.0f', token) or token
        fields.attempt = tonumber(fields.attempt)
        message[#message + 1] = fields
      end
      message = string.format('{"first":%.0f,"events":%s}', number + from, cjson.encode(message))
      publish_live(prefix, publishes, message)
    end
  end

  -- Call this at the end of a script: it writes what was emitted, and notifies readers.
  function flush()
    if #emitted > 0 then
      -- A script that this one has called may have emitted some.
      number = tonumber(redis.call('HGET', history_key, 'last')) or number
      if kept then keep_all() end
      local last = string.format('%.0f', number + #emitted)
      redis.call('HSET', history_key, 'last', last)
      if kept then
        trim()
        redis.pcall('PUBLISH', events, last)
      end
      if publishes then publish() end
      if counts and next(counts) then add_to_rollups(counts, 0) end
    end
  end
end
