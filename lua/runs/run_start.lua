-- Start a flow run: store its plan and its input, and add the items of its first stages.
--
-- The fields of a large run are sent in several calls. Until the last one there is no run: what was stored of
-- it is removed after an hour, or by another caller that begins to store a run of this id.
--
-- Keys: queue, processing, gone, deadlines, scheduled, ledger, watchers, options, errors, events
-- Arguments:
--   prefix   text     the name of the run's home queue
--   now_ms   integer  the time; empty: the server's time
--   of_run   text     the run's id
--   builder  text     an id of the caller's, the same in all calls for this run
--   is_first flag     1: this is the first call
--   seal     flag     1: this is the last call, which starts the run
--   entries  rest     field, value, …
-- Reply: 1 stored, or started by this call; 0 there is a run of this id; -1 another caller has removed what
--   was stored: begin with the first call again; -2 the stage that is to wait for it does not: it is not
--   started.
-- Cost: O(1) per field and per first stage.
-- Limits: at most 1,000 fields a call; it adds about 60 items. If there are more first stages, the holder of
--   the item `<run>/` adds the others.
-- Needs: check
-- Uses: read_clock (read_clock), split_reference (reference), heal_run, is_marked, open_run, opened_runs,
--   read_fields, run_field, set_run (run), commit_runs, write_run (run_commit), enter_first, is_run_active
--   (run_step)

redis.call('HLEN', watchers)
redis.call('HLEN', options)
redis.call('HLEN', errors)
redis.call('XLEN', events)
opened_runs.checked = prefix
local it = open_run(prefix, of_run)
read_fields(it, { 'state', 'building', 'active', 'error', 'adding', 'mark', 'j:', 's:', 'parent' })
local building = run_field(it, 'building')
if run_field(it, 'state') then
  -- An interrupted call may have left the rest undone.
  if seal then
    it.indexes = is_run_active(it)
    heal_run(it)
    local refused = commit_runs()
    if refused then return refused end
  end
  return building == builder and 1 or 0
end
if not is_first and building ~= builder then return -1 end

local stale = building and building ~= builder
if stale then
  for name in pairs(it.fields) do
    it.fields[name] = false
  end
end
if not (is_first and seal) then set_run(it, 'building', builder) end
for at = entries + 1, #ARGV, 2 do
  set_run(it, ARGV[at], ARGV[at + 1])
end
if not seal then
  it.stale = stale
  write_run(it)
  redis.call('PEXPIRE', it.key, 3600000)
  return 1
end
local home, waiting_id, path, mark = split_reference(run_field(it, 'parent') or '')
if home == prefix then -- the stage may have ended since its holder has begun, as that of a cancelled run
  local waiting = open_run(home, waiting_id)
  read_fields(waiting, { 'state', 'mark', 's:' .. path })
  local is_waiting = is_marked(waiting, mark) and run_field(waiting, 's:' .. path) == 'w'
  if not is_waiting or run_field(waiting, 'state') == 'cancelled' then return -2 end
end
set_run(it, 'created', string.format('%.0f', read_clock()))
set_run(it, 'state', 'active')
if builder ~= '' then set_run(it, 'mark', builder) end
it.starts, it.indexes, it.stale = true, true, stale
enter_first(it)
return commit_runs() or 1
