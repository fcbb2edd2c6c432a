"""Stop the next script of a queue after one of its writes, as the server does when it is killed.

Every script of this process gets a text in front: if the key `~cut:<queue>` exists, it holds how many writes
the next script of this queue may make, and the one after them raises an error. What was written stays. If the
number begins with "+", what the next script has not used is for the scripts after it.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from leasequeue.wire import runner
from leasequeue.wire.scripts import find_script
from tests.stateful.interruption import READS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from leasequeue.wire.scripts import Script

#: What the error of a stopped script says.
STOPPED = "stopped by the test"
BEFORE = b"""
local server, reads, writes, allowed = redis, {}, 0, redis.call('GET', '~cut:' .. ARGV[1])
local is_shared = allowed and string.sub(allowed, 1, 1) == '+'
if allowed then
  allowed = tonumber(allowed)
  if not is_shared then
    redis.call('DEL', '~cut:' .. ARGV[1])
  end
  for name in string.gmatch('%s', '%%u+') do
    reads[name] = true
  end
end
local function guarded(send)
  return allowed and function(command, ...)
    if not reads[string.upper(command)] then
      if writes >= allowed then
        server.call('DEL', '~cut:' .. ARGV[1])
        error('%s', 0)
      end
      writes = writes + 1
      if is_shared then
        server.call('SET', '~cut:' .. ARGV[1], '+' .. allowed - writes)
      end
    end
    return send(command, ...)
  end or send
end
local redis = setmetatable(
  { call = guarded(server.call), pcall = guarded(server.pcall) },
  { __index = server }
)
""" % (b" ".join(READS.encode().split()), STOPPED.encode())


@contextmanager
def stoppable_scripts(scripts: Mapping[str, Script] | None = None) -> Iterator[None]:
    """Let this process use scripts that can be stopped.

    Args:
        scripts: The scripts in place of those of the package: with faults.
    """

    @cache
    def find(name: str) -> Script:
        script = scripts[name] if scripts else find_script(name)
        body = BEFORE + script.body
        sha = hashlib.sha1(body, usedforsecurity=False).hexdigest().encode()
        return replace(script, body=body, sha=sha)

    names = vars(runner)
    before = names["find_script"]
    names["find_script"] = find
    try:
        yield
    finally:
        names["find_script"] = before


def stop_next(server: Any, queue: str, writes: int) -> None:
    """Stop the next script of a queue after so many writes."""
    server.set(f"~cut:{queue}", writes)


def stop_after(server: Any, queue: str, writes: int) -> None:
    """Stop a queue's scripts after so many writes in all, in the next one or in a later one."""
    server.set(f"~cut:{queue}", f"+{writes}")


def stop_none(server: Any, queue: str) -> bool:
    """Let all scripts of a queue run to their ends; return whether one was to be stopped still."""
    return bool(server.delete(f"~cut:{queue}"))
