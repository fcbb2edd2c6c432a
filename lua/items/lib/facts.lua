-- Read, write and forget the facts that an item carries beyond its data: its options,
-- its last error, and its progress.
--
-- The options of an item are a JSON object with those that are not the default: `level` (a whole number, -9
-- to 9), `group` (text), `tags` (a list of texts), `weight` (2 to 10^6: as how many of a rate it counts),
-- `unstarted` (text, see `items/lib/unstarted`), `expires` (ms since 1970), `trace` (a `traceparent` of W3C:
-- who added the item; of a stage, also several with commas: what led to it), `run` (which stage of a flow run
-- it is, see `runs/lib/reference`), `emitted` and `logged` (for how many ms its chunks are kept, see
-- `items/lib/chunks`). What another client has written there and cannot be read counts as no options.
--
-- Needs: options, errors
-- Gives: any_facts, any_options, forget_facts, note_errors, errors_of, read_options, option_texts,
--   options_of, placed, traces_of, options_text, write_options
-- Uses: progress_key, tags_key, unsettled_key, unstarted_key (RARE_KEYS), end_chunks (chunks), DONE_END,
--   GROUP_CUT, LATEST_DUE, REF_CUT, TABLE_BLANKS, TOKEN_LIMIT (encodings), in_chunks, read_in_chunks (keys),
--   set_of (lists), newer_format (newer), any_rare (rare), read_texts (read_texts), leave_tags, note_tags,
--   tags_in (tags), leave_unstarted, note_unstarted, unstarted_in (unstarted)

-- Return a time to keep chunks, as options have it; nil: it is none.
local function keep_of(value)
  return type(value) == 'number' and value >= 1 and value < LATEST_DUE and value % 1 == 0 and value or nil
end

local any_facts = any_rare and redis.call('EXISTS', options, errors, progress_key) > 0
if any_facts then
  -- Read before anything is written, as all keys are.
  for _, key in ipairs({ options, errors, progress_key, unsettled_key }) do
    redis.call('HLEN', key)
  end
  redis.call('ZCARD', tags_key)
end

local function weight_of(value)
  return type(value) == 'number' and value >= 2 and value <= 1e6 and value % 1 == 0 and value or nil
end

-- Return the text of the options of each item, or false; nothing if no item has any.
local function option_texts(ids)
  local texts = {}
  for i, id in ipairs(any_facts and ids or {}) do
    texts[i] = read_texts[id]
    if texts[i] == nil then
      texts = read_in_chunks('HMGET', options, ids)
      for at, text in ipairs(texts) do
        read_texts[ids[at]] = text
      end
      break
    end
  end
  return texts
end

-- Return the options in a text (false: none) as a table.
local function read_options(text)
  local trace = text and string.match(text, '^{"trace":"([%x-]+)"}$')
  if trace then -- and nothing else, as with most items that have one
    return { trace = trace }
  end
  -- Only a group, likewise: a lease may meet a hundred of them.
  local only_group = string.match(text or '', '^{"group":"([^%c"\\]+)"}$')
  if only_group then return { group = only_group } end
  -- Only the stage of a flow run, as `runs/lib/run` writes it: reading JSON takes twice as long.
  local home, id, path, mark =
    string.match(text or '', '^{"run":"([^"\\]*)\\u0000([^"\\]*)\\u0000([^"\\]*)\\u0000([^"\\]*)"}$')
  if home then return { run = table.concat({ home, id, path, mark }, REF_CUT) } end
  local is_json, found = pcall(cjson.decode, text or '{}')
  if not is_json or type(found) ~= 'table' then return {} end
  local tags = tags_in(text)
  local level = type(found.level) == 'number' and math.floor(math.max(-9, math.min(9, found.level)))
  return {
    level = level and level ~= 0 and level or nil,
    group = type(found.group) == 'string' and found.group ~= '' and found.group or nil,
    tags = tags[1] and tags or nil,
    weight = weight_of(found.weight),
    unstarted = unstarted_in(text),
    expires = type(found.expires) == 'number' and math.abs(found.expires) < TOKEN_LIMIT and found.expires
      or nil,
    trace = type(found.trace) == 'string' and string.match(found.trace, '^[%x,-]+$') or nil,
    run = type(found.run) == 'string' and found.run or nil,
    emitted = keep_of(found.emitted),
    logged = keep_of(found.logged),
  }
end

-- Forget the facts of items that have ended. `answer_of`: id -> 1 if it was completed. `asked`: those of them
-- whose flow runs may not have recorded it; nil: all.
--
-- Those are noted that are of a stage of a flow run which has not ended, or that were removed although it is
-- done: see `run_settle`. The note of an item that was completed ends in NUL.
local function forget_facts(ids, answer_of, asked)
  if any_facts then
    local is_asked = asked and set_of(asked)
    for i, text in ipairs(option_texts(ids)) do
      leave_tags(ids[i], text)
      leave_unstarted(ids[i], text)
      end_chunks(ids[i], text)
      local of_run = (not asked or is_asked[ids[i]])
          and string.find(text or '', '"run"')
          and read_options(text).run
        or ''
      local home, id, path = string.match(of_run, '^(%Z+)%z(%Z+)%z(%Z*)')
      if home then
        local found = redis.pcall('HMGET', home .. ':run:' .. id, 's:' .. path, 'j:' .. path)
        local stage, is_done = found[1], answer_of and answer_of[ids[i]] == 1
        if
          stage == 'w'
          or (stage == 'x' and not string.find(found[2] or '', '^(%d+) %1 '))
          or (not answer_of and (stage == 'x' or stage == 'd'))
          or newer_format(home) -- what its hash says is for newer programs
        then
          redis.call('HSET', unsettled_key, ids[i], of_run .. (is_done and DONE_END or ''))
        end
      end
    end
    for _, key in ipairs({ options, errors, progress_key }) do
      in_chunks('HDEL', key, ids)
    end
    read_texts = {}
  end
end

-- Keep the last errors of items: id, error, …
local function note_errors(pairs_) in_chunks('HSET', errors, pairs_) end

-- Return the last error of each item, or false.
local function errors_of(ids) return any_facts and read_in_chunks('HMGET', errors, ids) or {} end

-- Return whether any item has options.
local function any_options() return any_facts and redis.call('HLEN', options) > 0 end

-- Return a table of options for each item, an empty one if it has none. Items may share it.
local function options_of(ids)
  local texts, found, parsed = option_texts(ids), {}, {}
  for i = 1, #ids do
    local text = texts[i] or ''
    parsed[text] = parsed[text] or read_options(text)
    found[i] = parsed[text]
  end
  return found
end

-- Return whether any of the items may have a level or a group, and so belong to a lane.
local function placed(ids)
  for _, text in ipairs(option_texts(ids)) do
    if text and (string.find(text, '"level', 1, true) or string.find(text, '"group', 1, true)) then
      return true
    end
  end
end

-- Return what the holder of each item gets to know of its options, or false; nil if none has any: the trace,
-- if it has one; of a stage of a flow run or of an item of a group, a line feed and the reference, then three
-- NUL and the group as JSON has it.
local function traces_of(ids)
  local traces, any = {}, nil
  for i, text in ipairs(option_texts(ids)) do
    local found = text and string.find(text, '"[tr]') and read_options(text) or {}
    local group = text and string.match(text, '"group":"([^"\\]*)"')
    if not group and text and string.find(text, '"group":', 1, true) then
      group = string.match(cjson.encode(read_options(text).group or ''), '^"(.+)"$') -- it has escapes
    end
    local rest = (found.run or '') .. (group and GROUP_CUT .. group or '')
    traces[i] = rest ~= '' and (found.trace or '') .. '\n' .. rest or found.trace or false
    any = any or traces[i]
  end
  return any and traces or nil
end

-- Return options as a text; nil: there are none.
local function options_text(found) return next(found) and cjson.encode(found) or nil end

-- Write the options of items that begin an incarnation, given as a text for each id that has some;
-- those of an earlier incarnation are removed. Call it before `enter_…`, which puts an item into
-- the place that its options say. `started`: id → true, for items that were leased and stand for no key.
local function write_options(ids, text_of, started)
  local written, removed = {}, {}
  local size = any_facts and redis.call('HLEN', options) or 0
  local were_options = size > 0
  local were_noted = were_options and redis.call('EXISTS', tags_key, unstarted_key) > 0
  for i, text in ipairs(were_noted and option_texts(ids) or {}) do
    leave_tags(ids[i], text)
    leave_unstarted(ids[i], text)
  end
  for _, id in ipairs(ids) do
    note_tags(id, text_of[id])
    if not (started and started[id]) then note_unstarted(id, text_of[id]) end
    if text_of[id] then
      written[#written + 1], written[#written + 2] = id, text_of[id]
    else
      removed[#removed + 1] = id
    end
  end
  if were_options then in_chunks('HDEL', options, removed) end
  if #written > 64 or (size % 16 == 15 and written[1]) then
    -- As with the ledger: the server would search a hash of short values linearly.
    written[2] = written[2] .. string.rep(' ', TABLE_BLANKS)
  end
  in_chunks('HSET', options, written)
  any_facts, read_texts = any_facts or #written > 0, {}
end
