"""What the workers tell, and the record that is kept of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from leasehold.cli.demo.describe import dump

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold import Lease


class DemoFailed(Exception):
    """The demo could not be played to its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that a worker tells.

    Attributes:
        kind: `ready` to take orders, has `leased` an item, has `renewed` its lease, or has `answered`: it
            called `complete`.
        worker: Its number.
        id: The item, and
        token: the number of the lease on it.
        deliveries: How often this item has been leased, this time included.
        deadline: When the lease ends, in seconds since 1970 by the server's clock.
        given: When it was given, by the same clock.
        holds: Whether it now holds the item, as ordered, until it is told to go on.
        counted: What `complete` answered.
    """

    kind: Literal["ready", "leased", "renewed", "answered"]
    worker: int
    id: str = ""
    token: int = 0
    deliveries: int = 0
    deadline: float = 0.0
    given: float = 0.0
    holds: bool = False
    counted: bool = False

    @classmethod
    def leased(cls, worker: int, lease: Lease, *, seconds: float, holds: bool) -> Event:
        """Tell of a lease that was just given for so many seconds."""
        return cls(
            kind="leased",
            worker=worker,
            id=lease.id,
            token=lease.token,
            deliveries=lease.deliveries,
            deadline=lease.deadline,
            given=lease.deadline - seconds,
            holds=holds,
        )

    @classmethod
    def read(cls, line: bytes) -> Event:
        """Read what `line` wrote."""
        return cls(**json.loads(line))

    def line(self) -> bytes:
        """Write the event as one line."""
        return dump(asdict(self))


class Record:
    """All that the workers have told so far.

    Attributes:
        events: In the order in which they were heard.
        completions: How often `complete` answered True, by id.
        heard_at: `time.perf_counter()` at the last completion that counted.
    """

    def __init__(self, *, on_completed: Callable[[int], None]) -> None:
        self.events: list[Event] = []
        self.completions: Counter[str] = Counter()
        self.heard_at = time.perf_counter()
        self._on_completed = on_completed
        self._waiting: dict[asyncio.Future[Event], Callable[[Event], bool]] = {}
        self._failure: DemoFailed | None = None

    def add(self, event: Event) -> None:
        """Note what was told, and wake who waits for it."""
        self.events.append(event)
        if event.counted:
            self.completions[event.id] += 1
            self.heard_at = time.perf_counter()
            self._on_completed(len(self.completions))
        for future, wanted in self._waiting.items():
            if not future.done() and wanted(event):
                future.set_result(event)

    def fail(self, failure: DemoFailed) -> None:
        """Let nobody wait any longer."""
        self._failure = failure
        for future in self._waiting:
            if not future.done():
                future.set_exception(failure)

    async def first(self, wanted: Callable[[Event], bool]) -> Event:
        """Wait for the first event, told or to come, that is wanted.

        Raises:
            DemoFailed: If `fail` was called before there was one.
        """
        for event in self.events:
            if wanted(event):
                return event
        if self._failure:
            raise self._failure
        future: asyncio.Future[Event] = asyncio.get_running_loop().create_future()
        self._waiting[future] = wanted
        try:
            return await future
        finally:
            del self._waiting[future]
