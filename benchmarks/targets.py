"""What is measured: the queue, and two references that call the same scripts directly."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.measure import Row, Sample, Setting, metered, speed_row, take_turns
from leasequeue import AsyncWorkQueue, Item, Lease
from leasequeue.keys import QueueKeys
from leasequeue.wire.runner import BoundScript, CommonArguments

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from benchmarks.bench import Bench

    Step = Callable[[], Awaitable[None]]

_Work = TypeVar("_Work")
_numbers = itertools.count(1)

LEASE_SECONDS = 3600
#: Items per call of the ceiling.
CEILING_ITEMS = 250
#: A script call with finished arguments: hash, number of keys, keys and arguments.
Call = tuple[bytes, int, tuple[bytes, ...]]


class Ours:
    """The queue as users call it, by some coroutines at once; one coroutine is a plain loop."""

    who = "leasequeue"

    def __init__(self, queue: AsyncWorkQueue, coroutines: int) -> None:
        self._queue = queue
        self._coroutines = coroutines
        self._cycle = (0, b"")
        self._items: list[Item] = []
        self._leases: list[Lease] = []

    async def prepare(self, items: int, payload: int) -> None:
        """Create the items to add."""
        data = bytes(payload)
        self._items = [Item(data) for _ in range(items)]

    async def add(self) -> None:
        """Add the prepared items."""

        async def step(part: Sequence[Item]) -> None:
            for item in part:
                await self._queue.add_item(item)

        await self._spread(step, self._items)

    async def lease(self) -> None:
        """Lease as many items."""
        self._leases = []

        async def step(part: Sequence[Item]) -> None:
            for _ in part:
                lease = await self._queue.lease(LEASE_SECONDS)
                assert lease is not None
                self._leases.append(lease)

        await self._spread(step, self._items)

    async def prepare_complete(self) -> None:
        """Do nothing: users pass the lease as it is."""

    async def complete(self) -> None:
        """Complete them."""

        async def step(part: Sequence[Lease]) -> None:
            for lease in part:
                assert await self._queue.complete(lease)

        await self._spread(step, self._leases)

    async def prepare_cycle(self, items: int, payload: int) -> None:
        """Set the size of a cycle."""
        self._cycle = (items, bytes(payload))

    async def cycle(self) -> None:
        """Create, add, lease and complete the items, each coroutine one after the other."""
        items, data = self._cycle

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
    """The same scripts, called with redis-py one call at a time, with arguments prepared before.

    Args:
        client: A client of redis-py with its defaults.
        name: The queue's name.
        per_call: Items per call: 1 is the bare loop, 500 the ceiling.
    """

    def __init__(self, client: Redis, name: str, per_call: int) -> None:
        self.who = "bare" if per_call == 1 else "ceiling"
        self._evalsha: Any = client.evalsha  # typed for the blocking client as well
        self._client = client
        self._per_call = per_call
        self._keys = QueueKeys(name, "lh:bench")
        self._scripts = {
            script: BoundScript(script, self._keys) for script in ("add_items", "lease_many", "complete_many")
        }
        common = CommonArguments(self._keys, return_front=False).current()
        self._fixed: dict[str, bytes | int] = {
            **common,
            "park_ms": 10_000,
            "max_bytes": 8 << 20,
            "by_level": 0,
            "whole": 0,
        }
        self._ids: list[bytes] = []
        self._adds: list[Call] = []
        self._replies: list[list[Any]] = []
        self._completes: list[Call] = []
        number = next(_numbers)  # two references may share a queue, so their ids differ
        self._new_ids = (b"%08x%024x" % (number, at) for at in itertools.count())

    @classmethod
    async def open(cls, bench: Bench, per_call: int, database: int = 0, name: str = "") -> Raw:
        """Connect, and load the scripts into the server."""
        client = await bench.client(database)
        raw = cls(client, name or bench.name(), per_call)
        for bound in raw._scripts.values():
            await client.script_load(bound.script.body)
        return raw

    async def prepare(self, items: int, payload: int) -> None:
        """Prepare the calls that add so many items."""
        data = bytes(payload)
        self._ids = list(itertools.islice(self._new_ids, items))
        self._adds = [
            self._call("add_items", [value for item_id in part for value in (item_id, data, b"0", b"0")])
            for part in self._parts(self._ids)
        ]

    async def add(self) -> None:
        """Add the prepared items."""
        evalsha = self._evalsha
        for sha, keys, tail in self._adds:
            await evalsha(sha, keys, *tail)

    async def lease(self) -> None:
        """Lease as many items."""
        evalsha = self._evalsha
        sha, keys, tail = self._lease_call()
        self._replies = [await evalsha(sha, keys, *tail) for _ in self._adds]

    async def prepare_complete(self) -> None:
        """Prepare the calls that complete what was leased."""
        self._completes = [self._complete_call(reply[3::4], reply[5::4]) for reply in self._replies]

    def prepare_leases(self, leases: Sequence[Lease]) -> None:
        """Prepare the calls that complete the leases of another client."""
        self._ids = [lease.id.encode() for lease in leases]
        tokens = [lease.token for lease in leases]
        parts = zip(self._parts(self._ids), self._parts(tokens), strict=True)
        self._completes = [self._complete_call(ids, part) for ids, part in parts]

    async def complete(self) -> None:
        """Complete them."""
        evalsha, done = self._evalsha, 0
        for sha, keys, tail in self._completes:
            done += sum(await evalsha(sha, keys, *tail))
        assert done == len(self._ids)

    async def prepare_cycle(self, items: int, payload: int) -> None:
        """Prepare all calls of a cycle; the tokens of the leases to come are known beforehand."""
        await self.prepare(items, payload)
        last = int(await self._client.get(self._keys["fence"]) or 0)
        self._completes = []
        for part in self._parts(self._ids):
            self._completes.append(self._complete_call(part, range(last + 1, last + 1 + len(part))))
            last += len(part)

    async def cycle(self) -> None:
        """Add, lease and complete the prepared items."""
        evalsha, done = self._evalsha, 0
        sha, keys, tail = self._lease_call()
        for add, complete in zip(self._adds, self._completes, strict=True):
            await evalsha(add[0], add[1], *add[2])
            await evalsha(sha, keys, *tail)
            done += sum(await evalsha(complete[0], complete[1], *complete[2]))
        assert done == len(self._ids), f"{len(self._ids)} items were added, {done} completed"

    def _parts(self, values: Sequence[_Work]) -> list[Sequence[_Work]]:
        return [values[at : at + self._per_call] for at in range(0, len(values), self._per_call)]

    def _lease_call(self) -> Call:
        per_call = min(self._per_call, len(self._ids))
        return self._call("lease_many", [b"%d" % per_call, b"%d" % (1000 * LEASE_SECONDS)])

    def _complete_call(self, ids: Sequence[bytes], tokens: Sequence[int]) -> Call:
        entries = zip(ids, tokens, strict=True)
        return self._call("complete_many", [v for i, t in entries for v in (i, b"%d" % t, b"0")])

    def _call(self, name: str, rest: Sequence[bytes]) -> Call:
        bound = self._scripts[name]
        keys, *tail = bound.tail(self._fixed, rest)
        return bound.script.sha, int(keys), tuple(tail)


@dataclass
class Trial:
    """A target at one setting: its measured steps, what prepares them, and the samples."""

    who: str
    setting: Setting
    items: int  #: how many items each step processes
    steps: dict[str, tuple[Step | None, Step]]  #: name -> its preparation, and what is measured
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def phases(cls, target: Ours | Raw, setting: Setting, items: int, payload: int) -> Trial:
        """Measure add, lease and complete separately; the queue is empty after a round."""
        steps: dict[str, tuple[Step | None, Step]] = {
            "add": (partial(target.prepare, items, payload), target.add),
            "lease": (None, target.lease),
            "complete": (target.prepare_complete, target.complete),
        }
        return cls(target.who, setting, items, steps)

    @classmethod
    def cycle(
        cls, target: Ours | Raw, setting: Setting, items: int, payload: int, what: str = "cycle"
    ) -> Trial:
        """Measure the whole cycle of an item."""
        prepare = partial(target.prepare_cycle, items, payload)
        return cls(target.who, setting, items, {what: (prepare, target.cycle)})

    async def round(self, redis: Redis) -> None:
        """Run and measure each step once."""
        for what, (prepare, step) in self.steps.items():
            if prepare is not None:
                await prepare()
            async with metered(redis, self.items) as sample:
                await step()
            self.samples.setdefault(what, []).append(sample)

    def rows(self) -> list[Row]:
        """Return a row per step."""
        return [
            speed_row(what, samples, who=self.who, setting=self.setting)
            for what, samples in self.samples.items()
        ]


async def measured(bench: Bench, trials: Sequence[Trial], rounds: int) -> list[Row]:
    """Let the trials take turns, and return their rows."""
    await take_turns(rounds, [partial(trial.round, bench.redis) for trial in trials])
    return [row for trial in trials for row in trial.rows()]
