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


class DemoFailed(Exception):
    """The demo could not be played to its end."""


Kind = Literal["leased", "holds", "renewed", "completed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One thing that a worker tells.

    Attributes:
        kind: It begins with an item that it has `leased`, `holds` it until it is told to go on, has asked the
            server to take its lease as `renewed`, or the item as `completed`.
        id: The item, and
        token: the number of the lease on it.
        attempt: How often this item has been leased, this time included.
        deadline: When the lease ends, in seconds since 1970 by the server's clock.
        given: When it was given, by the same clock.
        answer: What the server answered.
        worker: Its number, which is written down by who hears it.
    """

    kind: Kind
    id: str
    token: int
    attempt: int
    deadline: float
    given: float = 0.0
    answer: bool = True
    worker: int = 0

    @classmethod
    def read(cls, line: bytes, worker: int) -> Event:
        """Read what `line` wrote, as told by a worker."""
        return cls(**{**json.loads(line), "worker": worker})

    def line(self) -> bytes:
        """Write the event as one line."""
        return dump(asdict(self))

    @property
    def counted(self) -> bool:
        """Whether the item is done, by this one."""
        return self.kind == "completed" and self.answer

    @property
    def over(self) -> bool:
        """Whether nothing more is heard of this run: the item is done, or no longer its own."""
        return self.kind == "completed" or not self.answer


class Record:
    """All that the workers have told so far.

    Attributes:
        events: In the order in which they were heard.
        completions: How often `complete` answered True, by id.
        began_at, heard_at: `time.perf_counter()` at the first event, and at the last completion that counted.
    """

    def __init__(self, *, on_completed: Callable[[int], None]) -> None:
        self.events: list[Event] = []
        self.completions: Counter[str] = Counter()
        self.began_at = self.heard_at = time.perf_counter()
        self._on_completed = on_completed
        self._waiting: dict[asyncio.Future[Event], Callable[[Event], bool]] = {}
        self._failure: DemoFailed | None = None

    def add(self, event: Event) -> None:
        """Note what was told, and wake who waits for it."""
        if not self.events:
            self.began_at = time.perf_counter()
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
