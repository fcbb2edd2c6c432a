"""Producers, workers and cleaners of three libraries on one queue, in every pairing and all at once.

The six pairings of three different libraries run in `make test`, the other 21 in `make test-long`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

import pytest

from leasequeue import AsyncWorkQueue
from tests.interop.clients import Member, Ours, Record, Theirs, clean, produce, rescue, work
from tests.interop.state import keys_of
from tests.queue.asking import blocked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.interop.conftest import StartForeign

pytestmark = pytest.mark.slow

Side = Literal["ours", "python", "node"]
SIDES: tuple[Side, ...] = ("ours", "python", "node")
PAIRINGS = [
    pytest.param(*sides, id="-".join(sides), marks=[] if len(set(sides)) == 3 else [pytest.mark.long])
    for sides in itertools.product(SIDES, repeat=3)
]


class Scene:
    """A queue and the clients that use it."""

    def __init__(self, redis: Redis, name: str, start: StartForeign) -> None:
        self._redis = redis
        self._name = name
        self._start = start
        self._ending = AsyncExitStack()

    async def member(self, side: Side) -> Member:
        """Start a client."""
        if side == "ours":
            return Ours(await self._ending.enter_async_context(AsyncWorkQueue(self._name, self._redis)))
        client = await self._start(side)
        self._ending.push_async_callback(client.stop)
        return Theirs(client, self._redis, self._name)

    async def run(
        self,
        producers: tuple[Side, ...],
        workers: tuple[Side, ...],
        cleaners: tuple[Side, ...],
        count: int,
        *,
        stall: float,
    ) -> tuple[Record, int]:
        """Let each producer add `count` items, and wait until all are finished.

        Returns:
            The record, and how often a deep clean was made because no item was finished for `stall` seconds.
        """
        shares = [
            {
                f"{side}-{number}": hashlib.sha512(f"{side}-{number}".encode()).digest()
                for number in range(count)
            }
            for side in producers
        ]
        record = Record({item_id: data for share in shares for item_id, data in share.items()})
        sides = (*producers, *workers, *cleaners)
        members = iter(await asyncio.gather(*(self.member(side) for side in sides)))
        async with asyncio.timeout(600), asyncio.TaskGroup() as clients:
            for share in shares:
                clients.create_task(produce(next(members), share))
            for _ in workers:
                clients.create_task(work(next(members), record))
            for _ in cleaners:
                clients.create_task(clean(next(members), record))
            helper = await self._ending.enter_async_context(AsyncWorkQueue(self._name, self._redis))
            helped = clients.create_task(rescue(helper, record, stall=stall))
        await self.end()
        return record, helped.result()

    async def end(self) -> None:
        """Stop all clients."""
        await self._ending.aclose()

    async def assert_empty(self) -> None:
        """Assert that no item is left, and after a clean of ours nothing else either."""
        left = await keys_of(self._redis, self._name)
        assert not [key for key in left if key.startswith("item:")]
        async with AsyncWorkQueue(self._name, self._redis, clock=lambda: time.time() + 3600) as last:
            assert await last.lease(1, block=False) is None
            for _ in range(2):
                await last.deep_clean()
        left = await keys_of(self._redis, self._name)
        # A lease key that a foreign client wrote for an item that was finished, or for a ghost; or one with
        # which a deep clean marked an item, which a client that knows the other key alone then finished.
        expiring = {key for key in left if await self._redis.pttl(f"{self._name}:{key}") != -1}
        assert not [key for key in expiring if not key.startswith(("leased_by_session:", "lease:"))]
        assert left - expiring <= {"fence"}


@pytest.fixture
async def scene(redis: Redis, name: str, start: StartForeign) -> AsyncIterator[Scene]:
    scene = Scene(redis, name, start)
    yield scene
    await scene.end()


def assert_kept(record: Record) -> None:
    """Assert what Leasequeue guarantees beside any other client."""
    assert record.missing == set()
    assert max(record.finished_by_us.values(), default=1) == 1
    for item_id, tokens in record.tokens.items():
        assert tokens == sorted(set(tokens)), f"the tokens of {item_id} do not grow: {tokens}"
    given = [token for tokens in record.tokens.values() for token in tokens]
    assert len(given) == len(set(given))
    # A ghost is the id of a finished item, or the "0" that the Node cleaner adds.
    assert record.ghosts.keys() <= record.wanted.keys() | {"0"}


@pytest.mark.parametrize(("producer", "worker", "cleaner"), PAIRINGS)
async def test_every_item_is_finished_with_each_producer_worker_and_cleaner(
    scene: Scene, producer: Side, worker: Side, cleaner: Side
) -> None:
    record, helped = await scene.run((producer,), (worker, worker), (cleaner,), 40, stall=120)
    assert_kept(record)
    if worker == "ours":
        assert record.finished_by_us == dict.fromkeys(record.wanted, 1)
    else:
        assert record.finished_by_us == {}
    assert helped == 0
    await scene.assert_empty()


@pytest.mark.seed("RWQ-G15")
async def test_every_item_is_finished_with_nine_clients_at_once(scene: Scene) -> None:
    record, _ = await scene.run(SIDES, SIDES, SIDES, 200, stall=8)
    assert_kept(record)
    assert record.finished_by_us
    assert record.finished_by_them
    await scene.assert_empty()


@pytest.mark.seed("RWQ-G15")
async def test_each_library_finishes_its_share(
    queue: AsyncWorkQueue, redis: Redis, start: StartForeign
) -> None:
    """One worker of each library waits; an item of another client goes to the one that has waited longest."""
    clients = {side: await start(side) for side in ("python", "node")}
    finished: Counter[Side] = Counter()
    progress = asyncio.Semaphore(0)
    rounds = 60

    async def finish_one(side: Side) -> bool:
        if side == "ours":
            lease = await queue.lease(30, timeout=1)
            return lease is not None and await queue.complete(lease)
        item = await clients[side].lease(30, timeout=1)
        return item is not None and await clients[side].complete(item.id)

    async def work_on(side: Side) -> None:
        while finished.total() < rounds:
            if await finish_one(side):
                finished[side] += 1
                progress.release()

    async with asyncio.timeout(600), asyncio.TaskGroup() as workers:
        for side in SIDES:
            workers.create_task(work_on(side))
        for number in range(rounds):
            await blocked(redis, len(SIDES))
            await redis.set(f"{queue.name}:item:{number}", b"data")
            await redis.lpush(f"{queue.name}:queue", f"{number}")
            await progress.acquire()
    fair = rounds / len(SIDES)
    assert all(0.7 * fair <= finished[side] <= 1.3 * fair for side in SIDES), finished
