"""Producers, workers and cleaners, the same for each library, and a record of what they did."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasequeue import Item, Lease
from tests.interop.state import as_bytes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.interop.foreign import Foreign

#: How long leases last (s), ours and those of foreign clients, which take whole seconds.
OUR_LEASE, FOREIGN_LEASE = 0.4, 1
#: How long a worker waits for an item (s).
WAIT = 0.2
#: How long a cleaner waits between two cleans (s).
REST = 0.03


@dataclass(frozen=True, eq=False)
class Held:
    """An item under lease: `token` is None if a foreign client holds it, `mark` its lease key's value."""

    id: str
    data: bytes
    token: int | None = None
    lease: Lease | None = None
    mark: bytes | None = None


class Ours:
    """A client of Leasequeue. It waits for an item up to WAIT."""

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue
        self._rounds = 0

    async def add(self, item_id: str, data: bytes) -> None:
        assert await self._queue.add_item(Item(data, id=item_id))

    async def lease(self) -> Held | None:
        lease = await self._queue.lease(OUR_LEASE, timeout=WAIT)
        return None if lease is None else Held(lease.id, lease.data, token=lease.token, lease=lease)

    async def complete(self, held: Held) -> bool:
        assert held.lease is not None
        return await self._queue.complete(held.lease)

    async def is_over(self, held: Held) -> bool:
        assert held.lease is not None
        return held.lease.remaining() < 0

    async def clean(self) -> None:
        self._rounds += 1
        await (self._queue.light_clean() if self._rounds % 8 else self._queue.deep_clean())


class Theirs:
    """A client of another library, with the methods of `Ours`."""

    def __init__(self, client: Foreign, redis: Redis, name: str) -> None:
        self._client = client
        self._redis = redis
        self._name = name

    async def add(self, item_id: str, data: bytes) -> None:
        await self._client.add(item_id, data)

    async def lease(self) -> Held | None:
        item = await self._client.lease(FOREIGN_LEASE, timeout=WAIT)
        return item and Held(item.id, item.data, mark=await self._mark(item.id))

    async def complete(self, held: Held) -> bool:
        return await self._client.complete(held.id)

    async def is_over(self, held: Held) -> bool:
        mark = await self._mark(held.id)
        return mark is None or mark != held.mark

    async def clean(self) -> None:
        await self._client.light_clean()

    async def _mark(self, item_id: str) -> bytes | None:
        return as_bytes(await self._redis.get(f"{self._name}:leased_by_session:{item_id}"))


#: A client that adds, works or cleans.
Member = Ours | Theirs


@dataclass
class Record:
    """What was added, which side finished it, and the tokens of its leases."""

    wanted: dict[str, bytes]
    #: How often `complete` was True for an item, on each side.
    finished_by_us: Counter[str] = field(default_factory=Counter)
    finished_by_them: Counter[str] = field(default_factory=Counter)
    #: The tokens of our leases, in order.
    tokens: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: Items that were leased at least once.
    seen: set[str] = field(default_factory=set)
    #: Ids without an item that foreign clients leased.
    ghosts: Counter[str] = field(default_factory=Counter)
    progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def done(self) -> bool:
        """Whether all items are finished."""
        return self.missing == set()

    @property
    def missing(self) -> set[str]:
        """The items that no client has finished."""
        return self.wanted.keys() - self.finished_by_us.keys() - self.finished_by_them.keys()

    def leased(self, held: Held) -> str:
        """Note a lease; return what its holder does: "complete" it, "drop" it, or complete it "late".

        The first holder of every fourth item drops it or comes late.
        """
        if held.token is None and held.data == b"":
            self.ghosts[held.id] += 1
            return "complete"  # as a worker of that library does: to it, a ghost is an item without data
        assert self.wanted[held.id] == held.data
        if held.token is not None:
            self.tokens[held.id].append(held.token)
        first = held.id not in self.seen
        self.seen.add(held.id)
        number = int(held.id.rpartition("-")[2])
        return {1: "drop", 5: "late"}.get(number % 8, "complete") if first else "complete"

    def completed(self, held: Held, *, answer: bool) -> None:
        """Note the answer of `complete`."""
        if answer and held.token is not None:
            self.finished_by_us[held.id] += 1
        elif answer and held.data:
            self.finished_by_them[held.id] += 1
        self.progress.set()


async def produce(member: Member, items: dict[str, bytes]) -> None:
    """Add items, one after the other."""
    for item_id, data in items.items():
        await member.add(item_id, data)


async def work(member: Member, record: Record) -> None:
    """Lease and complete, drop or complete late, until all items are finished."""
    late: list[Held] = []
    while not record.done:
        held = await member.lease()
        task = record.leased(held) if held else "nothing"
        if held and task == "complete":
            record.completed(held, answer=await member.complete(held))
        elif held and task == "late":
            late.append(held)
        for one in [one for one in late if await member.is_over(one)]:
            late.remove(one)
            record.completed(one, answer=await member.complete(one))
    for one in late:
        record.completed(one, answer=await member.complete(one))


async def clean(member: Member, record: Record) -> None:
    """Clean until all items are finished."""
    while not record.done:
        await member.clean()
        await asyncio.sleep(REST)


async def rescue(queue: AsyncWorkQueue, record: Record, *, stall: float) -> int:
    """Run a deep clean whenever no item was finished for `stall` seconds; return how often."""
    helped = 0
    while not record.done:
        record.progress.clear()
        try:
            async with asyncio.timeout(stall):
                await record.progress.wait()
        except TimeoutError:
            await queue.deep_clean()
            helped += 1
    return helped
