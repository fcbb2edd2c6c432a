-- Find out which commands the access rules refuse, before any script writes.
--
-- A script that is refused a command has written what comes before it. So each command is
-- called here on a string that this script makes and removes: one that is permitted, and needs
-- another type, answers WRONGTYPE.
--
-- Keys: probe
-- Arguments:
--   prefix  text  the queue's name
-- Reply: 1 if MSETEX can be used, else 0; then the commands of the scripts that are refused, with
--   `?` before those that the server does not have.
-- Cost: O(1).
-- Limits: none.

-- stylua: ignore
local reads = {
  { 'EXISTS' }, { 'GET' }, { 'GETRANGE', 0, 0 }, { 'HEXISTS', '' }, { 'HGET', '' }, { 'HLEN' }, { 'HMGET', '' },
  { 'HRANDFIELD', 1 }, { 'HSCAN', 0 }, { 'HSTRLEN', '' }, { 'LINDEX', 0 }, { 'LLEN' }, { 'LPOS', '' }, { 'LRANGE', 0, 0 },
  { 'MGET' }, { 'PTTL' }, { 'SCARD' }, { 'SMISMEMBER', '' }, { 'STRLEN' }, { 'TYPE' }, { 'XLEN' },
  { 'XRANGE', '-', '+', 'COUNT', 1 }, { 'XREVRANGE', '+', '-', 'COUNT', 1 }, { 'ZCARD' },
  { 'ZCOUNT', 0, 0 }, { 'ZLEXCOUNT', '-', '+' }, { 'ZMSCORE', '' }, { 'ZRANDMEMBER', 1 },
  { 'ZRANGE', 0, 0 }, { 'ZRANGEBYSCORE', 0, 0 }, { 'ZRANK', '' }, { 'ZSCAN', 0 }, { 'ZSCORE', '' },
}
-- MSET has an odd number of values, as it would remove the time to live.
-- stylua: ignore
local writes = {
  { 'BITFIELD', 'SET', 'u8', 0, 0 }, { 'HDEL', '' }, { 'HSET', '', '' }, { 'INCRBY', 1 }, { 'LMOVE', probe, 'LEFT', 'RIGHT' },
  { 'LPUSH', '' }, { 'LREM', 0, '' }, { 'LSET', 0, '' }, { 'LTRIM', 0, 0 }, { 'MSET', '', probe },
  { 'PEXPIRE', 1000 }, { 'RPUSH', '' }, { 'SADD', '' }, { 'XADD', '*', '', '' },
  { 'XTRIM', 'MAXLEN', 1 }, { 'ZADD', 0, '' }, { 'ZREM', '' },
}

local refused = { 0 }
-- Call a command; returns whether the access rules permit it. Redis up to 7.0 has other words for this.
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local text = type(reply) == 'table' and reply.err or ''
  -- A server that runs no such scripts must say so here, and not after a write.
  if string.find(text, 'undeclared', 1, true) or string.find(text, 'not allowed from script', 1, true) then
    error(text)
  end
  local absent = string.find(text, 'nknown[%a ]* command called')
  local permitted = not (
    absent
    or string.find(text, 'ACL failure', 1, true)
    or string.find(text, 'NOPERM', 1, true)
    or string.find(text, 'The user executing the script can', 1, true)
  )
  if not permitted then refused[#refused + 1] = (absent and '?' or '') .. command end
  return permitted, text == ''
end

for _, read in ipairs(reads) do
  try(read[1], probe, unpack(read, 2))
end
try('EXISTS', prefix .. ':item:') -- no key is named so, and it is none of KEYS
try('SCAN', 0, 'MATCH', probe, 'COUNT', 1)
try('TIME')

-- UNLINK first: after it a server that has reached its `maxmemory` accepts the others. COPY,
-- PERSIST and RENAME find no key.
local can_write = try('UNLINK', probe) and try('SET', probe, '', 'PX', 1000)
for _, write in ipairs(writes) do
  if can_write then
    try(write[1], probe, unpack(write, 2))
  else
    refused[#refused + 1] = write[1] -- it would leave a key
  end
end
if can_write then
  try('COPY', none, probe)
  try('PERSIST', none)
  try('RENAME', none, probe)
  try('RENAMENX', none, probe)
  -- No client receives it, and rules that permit `<queue>:*` permit it.
  try('PUBLISH', prefix .. ':push:probe', '')
  try('SPUBLISH', prefix .. ':push:probe', '')
  local _, works = try('MSETEX', 1, probe, '', 'PX', 1000)
  refused[1] = works and 1 or 0
  redis.call('UNLINK', probe)
else
  refused[#refused + 1] = 'COPY'
  refused[#refused + 1] = 'PERSIST'
  refused[#refused + 1] = 'RENAME'
  refused[#refused + 1] = 'RENAMENX'
end
return refused
