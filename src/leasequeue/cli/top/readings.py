"""What `leasequeue top` has read of the server: with each reading a bounded part, the rest later."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Self

from leasequeue import Fleet
from leasequeue.cli.server import QueueUnknown
from leasequeue.errors import WrongKeyType
from leasequeue.errors.describing import text_of
from leasequeue.queue.shards.opening import find_layouts, open_queue, with_layout
from leasequeue.wire.discovery import MAX_KEYS, client_at
from leasequeue.wire.endpoints import close_client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator

    from leasequeue import AsyncWorkQueue
    from leasequeue.views import DeadLetter, QueueStats, WorkerView

#: The maximum number of queues; how many are read with one reading, and how many at the same time.
MAX_SHOWN, READ, AT_ONCE = 10_000, 500, 16
#: Of how many queues workers are read, and dead letters; and how many of these, at most 100 of a queue.
SERVED, LETTER_QUEUES, LETTERS = 500, 100, 1_000
#: How long to wait until queues are looked for again: so many times as long as it took, at least so long (s).
FIND_TIMES, FIND_SECONDS = 100.0, 10.0
#: How long a call may take (s).
REPLY_SECONDS = 5.0


class Readings:
    """What was read last, of the queues that are named, or of those that the server has.

    Attributes:
        stats: Those of the queues, by name.
        rates: How many leases a queue gave each second, between its last two readings.
        workers: The workers, with what they run.
        letters: The newest dead letters, each with its queue.
        cut: The tables of which a part is left out.
    """

    def __init__(self, url: str, names: Collection[str]) -> None:
        self.url, self._finds, self._find_at = url, not names, -math.inf
        self._names = names
        self._queues: dict[str, AsyncWorkQueue] = {}
        self._read_at: dict[str, float] = {}
        self._problems: dict[str, str] = {}
        self.stats: dict[str, QueueStats] = {}
        self.rates: dict[str, float] = {}
        self.workers: list[WorkerView] = []
        self.letters: list[tuple[str, DeadLetter]] = []
        self.cut: set[str] = set()

    async def __aenter__(self) -> Self:
        self._client = await client_at(self.url, reply_timeout=REPLY_SECONDS)
        for name in self._names:
            self._queues[name] = await open_queue(name, self._client, reply_timeout=REPLY_SECONDS)
        return self

    async def __aexit__(self, *_: object) -> None:
        for queue in self._queues.values():
            await queue.close()
        await close_client(self._client)

    def queue(self, name: str) -> AsyncWorkQueue:
        """Return a queue that is shown; raise QueueUnknown if it is gone."""
        if name not in self._queues:
            raise QueueUnknown(f"no such queue: {name}")
        return self._queues[name]

    def fleet(self, names: Iterable[str]) -> Fleet:
        """Return the workers of queues that are shown."""
        return Fleet(*map(self.queue, names))

    def notes(self) -> Iterator[str]:
        """Yield what has to be said of the queues."""
        if unread := self._unread():
            yield f"{len(unread):,} of {len(self._queues):,} queues are still to be read"
        if "queues" in self.cut:
            yield f"stopped after {len(self._queues):,} queues or {MAX_KEYS:,} keys: name the missing queues"
        yield from (f"{name}: {problem}" for name, problem in self._problems.items())

    async def read_all(self, tables: Iterable[str]) -> None:
        """Read all queues, and then these tables."""
        await self.read("queues")
        while self._unread():
            await self.read("queues")
        for table in tables:
            await self._read_table(table)

    async def read(self, table: str, shown: Collection[str] = ()) -> None:
        """Read some queues, those that are shown and those that were read longest ago; then a table.

        Raises:
            ServerError: If the server cannot be reached or refuses. What was read before stays.
        """
        if self._finds and time.monotonic() >= self._find_at:
            await self._find()
        order = sorted(self._queues, key=lambda name: (name not in shown, self._read_at.get(name, 0.0)))
        await _for_each(order[:READ], self._read_queue)
        await self._read_table(table)

    def _unread(self) -> set[str]:
        return self._queues.keys() - self._read_at.keys()

    async def _find(self) -> None:
        began = time.monotonic()
        layouts, complete = await find_layouts(self._client, max_keys=MAX_KEYS, max_queues=MAX_SHOWN)
        self._find_at = began + max(FIND_SECONDS, FIND_TIMES * (time.monotonic() - began))
        self._note_cut("queues", is_cut=not complete)
        for name in layouts.keys() - self._queues.keys():
            self._queues[name] = with_layout(name, self._client, layouts[name], reply_timeout=REPLY_SECONDS)
        for name in self._queues.keys() - layouts.keys():
            for known in (self.stats, self.rates, self._problems, self._read_at):
                known.pop(name, None)
            await self._queues.pop(name).close()

    async def _read_queue(self, name: str) -> None:
        before = self.stats.get(name)
        try:
            one = self.stats[name] = await self._queues[name].stats()
        except WrongKeyType as error:
            self.stats.pop(name, None)
            self._problems[name] = text_of(error)
        else:
            self._problems.pop(name, None)
            if before is not None and one.at > before.at:
                self.rates[name] = max(0, one.leases - before.leases) / (one.at - before.at)
        self._read_at[name] = time.monotonic()

    async def _read_table(self, table: str) -> None:
        if table in {"workers", "runs"}:
            served = [name for name, one in self.stats.items() if one.workers]
            self._note_cut("workers", "runs", is_cut=len(served) > SERVED)
            self.workers = await self.fleet(served[:SERVED]).workers() if served else []
        if table != "dead":
            return
        dead = sorted((-one.counts.dead, name) for name, one in self.stats.items() if one.counts.dead)
        count = min(100, LETTERS // max(1, min(len(dead), LETTER_QUEUES)))
        self._note_cut("dead", is_cut=len(dead) > LETTER_QUEUES or any(-many > count for many, _ in dead))
        found: list[tuple[str, DeadLetter]] = []

        async def read(name: str) -> None:
            letters = await self._queues[name].dead_letters.list(count=count, data=False)
            found.extend((name, letter) for letter in letters)

        await _for_each([name for _, name in dead[:LETTER_QUEUES]], read)
        self.letters = found

    def _note_cut(self, *tables: str, is_cut: bool) -> None:
        self.cut = self.cut | {*tables} if is_cut else self.cut - {*tables}


async def _for_each(names: Iterable[str], read: Callable[[str], Awaitable[None]]) -> None:
    """Read some queues at the same time; the first error ends all of it, or each would wait for its own."""
    left = iter(names)

    async def read_some() -> None:
        for name in left:
            await read(name)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(read_some())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
