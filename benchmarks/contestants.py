"""Who is measured: the queue itself, and the two references, which call the same scripts bare."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from leasehold import AsyncWorkQueue, Item, Lease
from leasehold.keys import QueueKeys
from leasehold.scripting.runner import BoundScript, bind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from benchmarks.rows import Who

_Work = TypeVar("_Work")

LEASE_SECONDS = 3600
#: How many items the ceiling moves with one call.
CEILING_ITEMS = 500
#: A script with its arguments, ready to be sent: hash, number of keys, keys and arguments.
Prepared = tuple[bytes, int, tuple[bytes, ...]]


class Contestant(Protocol):
    """Somebody who adds, leases and completes items, in steps that can be measured."""

    who: Who

    def prepare(self, items: int, payload: int) -> None:
        """Make so many items of so many bytes; not measured."""
        ...

    async def add(self) -> None:
        """Add the items that were prepared."""
        ...

    async def lease(self) -> None:
        """Lease as many."""
        ...

    def between(self) -> None:
        """Get ready to complete them; not measured."""
        ...

    async def complete(self) -> None:
        """Complete them."""
        ...

    async def cycle(self, items: int, payload: int) -> None:
        """Add, lease and complete so many items, one after the other as far as one coroutine goes."""
        ...


class Ours:
    """The queue as users call it, by some coroutines at once. One coroutine is a plain loop."""

    who: Who = "leasehold"

    def __init__(self, queue: AsyncWorkQueue, coroutines: int) -> None:
        self._queue = queue
        self._coroutines = coroutines
        self._items: list[Item] = []
        self._leases: list[Lease] = []

    def prepare(self, items: int, payload: int) -> None:
        """See `Contestant`."""
        data = bytes(payload)
        self._items = [Item(data) for _ in range(items)]

    async def add(self) -> None:
        """See `Contestant`."""

        async def step(part: Sequence[Item]) -> None:
            for item in part:
                await self._queue.add_item(item)

        await self._spread(step, self._items)

    async def lease(self) -> None:
        """See `Contestant`."""
        self._leases = []

        async def step(part: Sequence[Item]) -> None:
            for _ in part:
                lease = await self._queue.lease(LEASE_SECONDS)
                assert lease is not None
                self._leases.append(lease)

        await self._spread(step, self._items)

    def between(self) -> None:
        """See `Contestant`."""

    async def complete(self) -> None:
        """See `Contestant`."""

        async def step(part: Sequence[Lease]) -> None:
            for lease in part:
                assert await self._queue.complete(lease)

        await self._spread(step, self._leases)

    async def cycle(self, items: int, payload: int) -> None:
        """See `Contestant`. Making the item, with a random id, is part of it."""
        data = bytes(payload)

        async def step(part: Sequence[int]) -> None:
            queue = self._queue
            for _ in part:
                await queue.add_item(Item(data))
                lease = await queue.lease(LEASE_SECONDS)
                assert lease is not None
                assert await queue.complete(lease)

        await self._spread(step, range(items))

    async def _spread(
        self, step: Callable[[Sequence[_Work]], Awaitable[None]], work: Sequence[_Work]
    ) -> None:
        if self._coroutines == 1:
            await step(work)
            return
        share = max(1, len(work) // self._coroutines)
        await asyncio.gather(*(step(work[at : at + share]) for at in range(0, len(work), share)))


class Raw:
    """The same scripts, called with redis-py, one call at a time, with arguments that were made before.

    Args:
        client: A client of redis-py, as it is by default.
        name: The queue's name.
        per_call: How many items go with one call: 1 is the bare loop, 500 the ceiling.
    """

    def __init__(self, client: Redis, name: str, per_call: int) -> None:
        self.who: Who = "bare" if per_call == 1 else "ceiling"
        self._evalsha: Any = client.evalsha  # its type is that of the blocking client as well
        self._client = client
        self._per_call = per_call
        self._keys = QueueKeys(name, "lh:bench")
        self._scripts = {
            script: bind(script, self._keys) for script in ("add_items", "lease_many", "complete_many")
        }
        self._fixed: dict[str, bytes | int] = {
            "prefix": self._keys.prefix,
            "now_ms": b"",
            "session": self._keys.session,
            "return_front": 0,
            "park_ms": 10_000,
            "max_bytes": 8 << 20,
        }
        self._ids: list[bytes] = []
        self._adds: list[Prepared] = []
        self._replies: list[list[Any]] = []
        self._completes: list[Prepared] = []
        self._made = 0

    async def load(self) -> None:
        """Make the server know the scripts."""
        for bound in self._scripts.values():
            await self._client.script_load(bound.script.body)

    def prepare(self, items: int, payload: int) -> None:
        """See `Contestant`."""
        data = bytes(payload)
        self._ids = [b"%032x" % (self._made + i) for i in range(items)]
        self._made += items
        self._adds = [
            self._prepared("add_items", [value for item_id in part for value in (item_id, data, b"0", b"0")])
            for part in self._parts(self._ids)
        ]

    async def add(self) -> None:
        """See `Contestant`."""
        evalsha = self._evalsha
        for sha, keys, tail in self._adds:
            await evalsha(sha, keys, *tail)

    async def lease(self) -> None:
        """See `Contestant`."""
        evalsha = self._evalsha
        sha, keys, tail = self._lease_call()
        self._replies = [await evalsha(sha, keys, *tail) for _ in self._adds]

    def between(self) -> None:
        """See `Contestant`."""
        self._completes = [self._complete_call(reply[3::4], reply[5::4]) for reply in self._replies]

    def ready(self, leases: Sequence[Lease]) -> None:
        """Get ready to complete what somebody else has leased; not measured."""
        self._ids = [lease.id.encode() for lease in leases]
        tokens = [lease.token for lease in leases]
        parts = zip(self._parts(self._ids), self._parts(tokens), strict=True)
        self._completes = [self._complete_call(ids, part) for ids, part in parts]

    async def complete(self) -> None:
        """See `Contestant`."""
        evalsha, done = self._evalsha, 0
        for sha, keys, tail in self._completes:
            done += sum(await evalsha(sha, keys, *tail))
        assert done == len(self._ids)

    async def cycle(self, items: int, payload: int) -> None:
        """See `Contestant`: the calls that `prepare_cycle` has made."""
        evalsha, done = self._evalsha, 0
        sha, keys, tail = self._lease_call()
        for add, complete in zip(self._adds, self._completes, strict=True):
            await evalsha(add[0], add[1], *add[2])
            await evalsha(sha, keys, *tail)
            done += sum(await evalsha(complete[0], complete[1], *complete[2]))
        assert done == items, f"{items} items of {payload} bytes went in, {done} were completed"

    async def prepare_cycle(self, items: int, payload: int) -> None:
        """Make all calls of a cycle; not measured. The tokens to come are known beforehand."""
        self.prepare(items, payload)
        last = int(await self._client.get(self._keys["fence"]) or 0)
        parts = self._parts(self._ids)
        self._completes = []
        for part in parts:
            self._completes.append(self._complete_call(part, range(last + 1, last + 1 + len(part))))
            last += len(part)

    def _parts(self, values: Sequence[_Work]) -> list[Sequence[_Work]]:
        return [values[at : at + self._per_call] for at in range(0, len(values), self._per_call)]

    def _lease_call(self) -> Prepared:
        per_call = min(self._per_call, len(self._ids))
        return self._prepared("lease_many", [b"%d" % per_call, b"%d" % (1000 * LEASE_SECONDS)])

    def _complete_call(self, ids: Sequence[bytes], tokens: Sequence[int]) -> Prepared:
        entries = zip(ids, tokens, strict=True)
        return self._prepared("complete_many", [v for i, t in entries for v in (i, b"%d" % t, b"0")])

    def _prepared(self, name: str, rest: Sequence[bytes]) -> Prepared:
        bound: BoundScript = self._scripts[name]
        keys, *tail = bound.tail(self._fixed, rest)
        return bound.script.sha, int(keys), tuple(tail)
