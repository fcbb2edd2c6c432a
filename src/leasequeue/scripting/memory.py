"""Ask a server whether it has reached its `maxmemory`, so that it refuses what needs memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leasequeue.scripting.session import Session

_NUMBER = re.compile(rb"^(used_memory|maxmemory|mem_not_counted_for_evict):(\d+)", re.MULTILINE)


async def is_full(session: Session) -> bool:
    """Return whether a server has reached its `maxmemory`; False if the access rules forbid to ask.

    Raises:
        ConnectionLost, ServerBusy, ServerRefused: If the server cannot be reached.
    """
    [reply] = await session.runner.ask((b"INFO", b"memory"))
    if not isinstance(reply, bytes):
        return False
    numbers = {name: int(number) for name, number in _NUMBER.findall(reply)}
    # Buffers of replicas do not count.
    used = numbers.get(b"used_memory", 0) - numbers.get(b"mem_not_counted_for_evict", 0)
    return 0 < numbers.get(b"maxmemory", 0) < used
