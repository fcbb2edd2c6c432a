-- Store a schedule under its name, or change it.
--
-- A definition is "<version> <catch-up policy> <when>". Only the caller understands <when>, so the caller
-- provides the first due time. It is needed only if <when> is new: call without it, and again with it if the
-- reply says so.
--
-- A declaration (`forget_ms` is given) may be one of several, as workers of an old and of a new version
-- run at the same time. The definition counts that was declared first at the latest time. One that was not
-- declared for `forget_ms` is forgotten; declared again, it is a new one. A declaration that does not
-- count is noted, and stores nothing.
--
-- Keys: schedules, ticks, declared
-- Arguments:
--   prefix      text     the queue's name
--   now_ms      integer  the time; empty: the server's time
--   schedule    text     its name
--   definition  text     its definition
--   due_ms      integer  its first due time in ms since 1970, or empty
--   data        text     the data of the items that it adds
--   forget_ms   integer  of a declaration: for how long one counts that is not repeated; empty: this is none
-- Reply: the answer, the time in ms, 1 if a tick of the earlier definition is due (else 0). The
--   answer is 1 stored, 0 it was stored already, or another declaration counts, -1 nothing was
--   stored: call again with a due time.
-- Cost: O(log n) in the number of schedules.
-- Limits: none.
-- Uses: now (clock)

local data_of_schedule = prefix .. ':schedule:' .. schedule
local size = redis.call('STRLEN', data_of_schedule)
local before = redis.call('HGET', schedules, schedule)
local due = redis.call('ZSCORE', ticks, schedule)

local notes = redis.call('HGET', declared, schedule)

-- Return what is noted of the declarations with this one, and whether this one counts.
local function declare()
  local lines, since, counts = {}, now, true
  for first, last, other in string.gmatch(notes or '', '(%d+) (%d+) ([^\n]*)') do
    if now - tonumber(last) <= forget_ms then
      if other == definition then
        since = math.min(tonumber(first), now)
      else
        -- None was declared in the future: the clock has been set back since.
        lines[#lines + 1] = {
          math.min(tonumber(first), now - 1),
          string.format('%.0f', math.min(tonumber(last), now)),
          other,
        }
      end
    end
  end
  for i, line in ipairs(lines) do
    if line[1] > since or (line[1] == since and line[3] > definition) then counts = false end
    lines[i] = string.format('%.0f %s %s', line[1], line[2], line[3])
  end
  lines[#lines + 1] = string.format('%.0f %.0f %s', since, now, definition)
  return table.concat(lines, '\n'), counts
end

local noted, counts
if forget_ms then
  noted, counts = declare()
  if not counts then
    redis.call('HSET', declared, schedule, noted)
    return { 0, now, 0 }
  end
end

-- Note this declaration; what is stored by hand is no declaration any more.
local function note()
  if noted then
    redis.call('HSET', declared, schedule, noted)
  elseif notes then
    redis.call('HDEL', declared, schedule)
  end
end

local same_data = size == #data and (size == 0 or redis.call('GET', data_of_schedule) == data)
if due and before == definition and same_data then
  note()
  return { 0, now, 0 }
end
-- The other parts of a definition do not change when it is due.
local when = '^%S+ %S+ (.*)$'
if not (before and due and string.match(before, when) == string.match(definition, when)) then
  if not due_ms then return { -1, now, (due and tonumber(due) <= now) and 1 or 0 } end
  redis.call('ZADD', ticks, due_ms, schedule)
end
note() -- before the definition: a declared schedule that is not noted as one is never removed
if #data > 0 then
  redis.call('SET', data_of_schedule, data)
else
  redis.call('UNLINK', data_of_schedule)
end
-- The definition comes last: a schedule without one adds nothing, and `tick` removes what is left of it.
redis.call('HSET', schedules, schedule, definition)
return { 1, now, 0 }
