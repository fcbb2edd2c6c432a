"""Run scripts that are interrupted after one of their writes, as by a slot that moves away.

Before the text of a script comes another `redis`: it counts the commands that write, and after the last
that is allowed it refuses every command, to `redis.call` and to `redis.pcall`. What was written stays.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leasequeue.wire.scripts import load

if TYPE_CHECKING:
    from tests.lua.space import Call, Space

#: More writes than any call of the tests makes.
ALL = 1_000_000

#: The commands that only read, or publish: a message that is published changes no key.
READS = """
  EXISTS GET HEXISTS HGET HLEN HMGET HRANDFIELD HSCAN HSTRLEN LINDEX LLEN LPOS LRANGE MGET PTTL PUBLISH SCAN
  SCARD SISMEMBER SMISMEMBER SPUBLISH STRLEN TIME TYPE XLEN XRANGE XREVRANGE ZCARD ZLEXCOUNT ZMSCORE
  ZRANDMEMBER ZRANGE ZRANGEBYSCORE ZSCAN ZSCORE
"""
#: How many writes are allowed is one more key, behind those of the script. A command that is not named above
#: counts as a write.
BEFORE = b"""
local server, allowed, writes, commands = redis, tonumber(KEYS[#KEYS]), 0, {}
local reads = {}
local names = '%s'
for name in string.gmatch(names, '%%u+') do
  reads[name] = true
end
local function guarded(send, raise)
  return function(command, ...)
    local text = { command }
    for i = 1, math.min(select('#', ...), 12) do
      text[i + 1] = tostring((select(i, ...)))
    end
    text = table.concat(text, ' ')
    if writes >= allowed then
      commands[#commands + 1] = 'refused: ' .. text
      if raise then
        error('interrupted', 0)
      end
      return { err = 'TRYAGAIN interrupted' }
    end
    if not reads[string.upper(command)] then
      writes = writes + 1
      commands[#commands + 1] = writes .. ': ' .. text
    end
    if command == 'PUBLISH' or command == 'SPUBLISH' then
      return 1 -- as if a process had received it
    end
    return send(command, ...)
  end
end
local redis = setmetatable(
  { call = guarded(server.call, true), pcall = guarded(server.pcall, false) },
  { __index = server }
)
local function script()
""" % b" ".join(READS.encode().split())
AFTER = b"""
end
local ended, reply = pcall(script)
return { ended and 1 or 0, writes, commands, ended and reply or tostring(reply) }
"""


@dataclass(frozen=True)
class Run:
    """How a script ended.

    Attributes:
        ended: Whether it ran to its end.
        writes: How many commands have written.
        commands: These commands, and the ones that were refused.
        reply: Its reply, or the error that ended it.
    """

    ended: bool
    writes: int
    commands: list[str]
    reply: Any


class Interrupter:
    """Runs scripts up to one of their writes.

    Args:
        space: The keys that the scripts use.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self._shas: dict[str, str] = {}

    async def run(self, call: Call, writes: int = ALL) -> Run:
        """Run a script, and refuse every command after so many writes."""
        count, *rest = self.space.tail(call)
        keys, arguments = rest[: int(count)], rest[int(count) :]
        sha = await self._load(call.script)
        reply = await self.space.send("EVALSHA", sha, int(count) + 1, *keys, writes, *arguments)
        ended, written, commands, result = (*reply, None)[:4]
        return Run(ended == 1, written, [line.decode(errors="backslashreplace") for line in commands], result)

    async def _load(self, script: str) -> str:
        if script not in self._shas:
            text = b"".join([BEFORE, load()[script].body, AFTER])
            await self.space.send("SCRIPT LOAD", text)
            self._shas[script] = hashlib.sha1(text, usedforsecurity=False).hexdigest()
        return self._shas[script]
