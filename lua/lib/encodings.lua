-- Name the numbers and texts that stand for something else in a key.
--
-- No piece: the composer puts the value in place of the name, so the texts that are sent have no names. Each
-- value is one number or one text. A comment before each group says what it encodes, and why so.

-- What holds an item, in its lease keys. Clients of other libraries write their own names, so what is
-- ours begins with a text that none of these has. A session is such a name, too; the others are reserved.
local OURS = 'lh:'
local OURS_SIZE = 3
-- The item is scheduled; the key keeps cleaners of other clients away until it is due.
local SCHEDULED = 'lh:scheduled'
-- The item waits in a lane; its place there follows, so that it is found by its id. That in `held` is 0.
local WAITING = 'lh:waiting '
local WAITING_PLACE = '^lh:waiting (%d+)'
local HELD_PLACE = 0
-- The item was in no list when a deep clean looked; a name of that clean follows. What moves the item writes
-- over it, so of any number of cleaners only one puts it back.
local LOST = 'lh:lost '
local LOST_SIZE = 8
-- The item is leased, and both keys that said by whom are lost.
local UNKNOWN_HOLDER = 'lh:unknown'
-- The begin of the key of an inbox, after the queue's name and a colon.
local INBOX_OF_OURS = 'inbox:lh:'
local INBOX_OF_OURS_SIZE = 9

-- Times are whole ms. Half a ms more says of a time what would need another key otherwise; a remainder by
-- `WHOLE_MS` shows it. In `deadlines`: the lease is that of a client of another library, which ends early if
-- its key disappears. In `cancelled`: the item was not cancelled but has expired.
local WHOLE_MS = 1
local FOREIGN_MARK = 0.5
local EXPIRED_MARK = 0.5

-- The score of a session in `idle`: until when it waits, in units of 100 ms, times 32,768, plus the lease
-- time of what is delivered to it, in ms, at most 32,767. So one number has both, and sessions are sorted by
-- the time. Until the year 2800 it stays below 2^53, up to which a score is exact.
local IDLE_UNIT_MS = 100
local IDLE_LEASES = 32768
-- An odd lease time: the session makes no blocking move, and looks for items when it is notified. A lease
-- time of 0 says so, too, and that nothing can be delivered to it.
local LOOKS_MARK = 1

-- The byte with which the names of shards begin: each is a hash tag as a whole.
local BRACE = 123

-- The score of a worker in `heartbeats` that is being failed: it is over, and no time.
local BEING_FAILED = 0

-- For how many ms the time in `alarm` may have passed before another session takes it over.
local ALARM_GRACE_MS = 50

-- How many sessions ask when an item falls due, if more wait: one of them leases it, and each costs a call.
-- The client has the same number (`leasing.ASK_WHEN_DUE`).
local ASK_WHEN_DUE = 8

-- A level is two digits, sorted so that the highest comes first: 50 minus the level, which is -9 to 9.
local NO_LEVEL = 50
local LEVEL_DIGITS = '%02d'
local LEVEL_SIZE = 2
local HIGHEST_LEVEL = 41
local LOWEST_LEVEL = 59
local PLAIN_LEVEL = '50'
local TURNS_OF_NO_LEVEL = ':turns:50'

-- The name of a lane is the digits of its level, its group, which begins at `GROUP_AT`, and NUL, which no
-- group has. It is the begin of its members, which follow each other; those of the lane come before the same
-- name with `LANE_PAST` in place of NUL.
local GROUP_AT = 3
local LANE_END = '\0'
local LANE_PAST = '\1'
-- The lane of no level and no group. Its ids wait in `held`, not among the members of lanes.
local PLAIN_LANE = '50\0'
-- The members of the levels above that of no level end before it; the others begin there.
local TO_NO_LEVEL = '(50'
local FROM_NO_LEVEL = '[50'

-- The place of a member in its lane: 16 digits after the name. Then comes the id, `ID_AT` after the NUL. The
-- first of a lane is in the middle of all places, as the next may come before or behind it. All are below
-- 2^53, up to which each whole number is exact.
local FIRST_PLACE = 5e15
local PLACE_DIGITS = '%016.0f'
local PLACE_SIZE = 16
local ID_AT = 17

-- The name of a group whose items gather: its size, the time in ms that the first of them waits, and a key.
-- No batch has more items, and none waits longer. The places in its lane are times, in units of which a ms
-- has `PLACES_PER_MS`.
local GATHERING = '^batch:([1-9]%d*):([1-9]%d*):'
local MOST_GATHERED = 250
local LONGEST_GATHERING = 2592000000
local PLACES_PER_MS = 1e3

-- The score of a lane in `turns`. It is a time; lanes that are served in the same ms are a part of a ms
-- apart, so that they are sorted as they were served: 2,048 such turns are in a ms, and each of them is
-- exact.
local TURNS_PER_MS = 2048
-- A parked lane, which only a freed slot or a call opens, has the time at which it was parked, and this more:
-- it is later than each time that can come, and still shows which was parked first.
local PARKED = 1e15
local FROM_PARKED = '1e15'
local TO_PARKED = '(1e15'

-- What follows the name of its queue in an entry for limits that several queues share.
local QUEUE_END = '\0'

-- What follows the name of a group in `:rates`, where a heavy item has used more than the burst.
local HEAVY = '\0heavy'
-- The score of a queue that waits for no shared slot.
local WAITS_FOR_NONE = 'inf'

-- What is between the parts of the reference of a stage of a flow run, which its items carry.
local REF_CUT = '\0'
-- The end of a path in the field `adding` of a flow run.
local ADDING_END = '\0'
-- What is between flow, attribute and value in the key of an index of flow runs.
local BY_CUT = '\0'
-- What is between the path and the step in the field of what a stage does once.
local ONCE_CUT = '\0'
-- The end of a note in `unsettled` of an item that was completed.
local DONE_END = '\0'
-- What is before the group in what the holder of an item gets to know. A reference may have it too, but not a
-- group: the last one counts.
local GROUP_CUT = '\0\0\0'

-- Tokens are below this number, up to which each whole number is exact; attempts are below the other.
local TOKEN_LIMIT = 2 ^ 53
local ATTEMPT_LIMIT = 2 ^ 31
-- How many digits a count has at most that is kept as text, such as the number of an event.
local COUNT_DIGITS = 16
-- Blanks after a record of the ledger: a value of more than 64 bytes turns a hash into a hash table.
local TABLE_BLANKS = 65
-- How many bytes a chunk of a stream or a log counts beside its own, about what the server adds to it.
local CHUNK_BYTES = 32
-- The latest time at which an item may fall due: the year 10000.
local LATEST_DUE = 253402300800000

-- A cell of the history of a queue has 20 numbers of 5 bytes, the last of which is the age of the oldest
-- item: then 60 cells, an hour, fit the 6,144 bytes that the allocator gives to a string of their size.
local ROLLUP_SLOTS = 20
local ROLLUP_BYTES = 5
local ROLLUP_OLDEST = 19
-- The first slots of the histograms of runs and of waits.
local ROLLUP_RUNS = 5
local ROLLUP_WAITS = 12
