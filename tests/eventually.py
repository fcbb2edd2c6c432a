"""Wait for something to become true, with a deadline instead of a hope."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: How long a test waits for what it expects. The machine may be busy: no test that works comes near it.
LIMIT_SECONDS = 120.0


async def eventually(what: str, condition: Callable[[], bool], *, within: float = LIMIT_SECONDS) -> None:
    """Return as soon as the condition holds.

    Raises:
        AssertionError: If it does not hold after `within` seconds; `what` is in the message.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() < deadline, f"after {within} s still not: {what}"
        await asyncio.sleep(0.005)
