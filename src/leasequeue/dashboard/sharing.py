"""Reads that many viewers share: each is made once, however many ask for it at the same time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

#: How long an answer is handed out again (s): less than pages wait until they ask again.
KEPT_SECONDS = 2.0


class SharedReads:
    """The answers of the last seconds, and the calls in progress."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[Hashable, tuple[float, asyncio.Task[Any]]] = {}

    async def get(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `call` answers, or what it answered to others a moment ago. An error is not kept."""
        now = self._clock()
        self._calls = {
            one: (until, task)
            for one, (until, task) in self._calls.items()
            if not task.done() or (until > now and not task.cancelled() and task.exception() is None)
        }
        key = (key, id(asyncio.get_running_loop()))
        if key not in self._calls:
            self._calls[key] = (now + KEPT_SECONDS, asyncio.create_task(call()))
        # A viewer who goes away does not end the call of the others.
        answer: T = await asyncio.shield(self._calls[key][1])
        return answer

    def forget(self) -> None:
        """Have the next reads ask the server again, as something was changed."""
        self._calls.clear()
