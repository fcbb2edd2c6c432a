"""Producers, workers and cleaners of three libraries on one queue, in every pairing and all at once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

import pytest

from leasehold import AsyncWorkQueue
from tests.interop.crew import Books, Member, Ours, Theirs, clean, produce, rescue, work
from tests.interop.state import keys_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.interop.conftest import StartForeign

pytestmark = pytest.mark.slow

Side = Literal["ours", "python", "node"]
SIDES: tuple[Side, ...] = ("ours", "python", "node")
PAIRINGS = list(itertools.product(SIDES, repeat=3))


class Scene:
    """A queue, and all that are busy on it."""

    def __init__(self, redis: Redis, name: str, start: StartForeign) -> None:
        self._redis = redis
        self._name = name
        self._start = start
        self._ending = AsyncExitStack()

    async def member(self, side: Side) -> Member:
        """Start one more."""
        if side == "ours":
            return Ours(await self._ending.enter_async_context(AsyncWorkQueue(self._name, self._redis)))
        client = await self._start(side)
        self._ending.push_async_callback(client.stop)
        return Theirs(client, self._redis, self._name)

    async def run(
        self, producers: tuple[Side, ...], workers: tuple[Side, ...], cleaners: tuple[Side, ...], count: int
    ) -> tuple[Books, int]:
        """Let `count` items be added by each producer, and everything be finished.

        Returns:
            The books, and how often a deep clean had to help since nothing moved.
        """
        shares = [
            {
                f"{side}-{number}": hashlib.sha512(f"{side}-{number}".encode()).digest()
                for number in range(count)
            }
            for side in producers
        ]
        books = Books({item_id: data for share in shares for item_id, data in share.items()})
        sides = (*producers, *workers, *cleaners)
        members = iter(await asyncio.gather(*(self.member(side) for side in sides)))
        async with asyncio.timeout(50), asyncio.TaskGroup() as crew:
            for share in shares:
                crew.create_task(produce(next(members), share))
            for _ in workers:
                crew.create_task(work(next(members), books))
            for _ in cleaners:
                crew.create_task(clean(next(members), books))
            helper = await self._ending.enter_async_context(AsyncWorkQueue(self._name, self._redis))
            helped = crew.create_task(rescue(helper, books))
        await self.end()
        return books, helped.result()

    async def end(self) -> None:
        """Let everybody go home."""
        await self._ending.aclose()

    async def assert_empty(self) -> None:
        """There is no item left, and after a clean of ours nothing else either."""
        left = await keys_of(self._redis, self._name)
        assert not [key for key in left if key.startswith("item:")]
        async with AsyncWorkQueue(self._name, self._redis, clock=lambda: time.time() + 3600) as last:
            assert await last.lease(1, block=False) is None
            for _ in range(2):
                await last.deep_clean()
        left = await keys_of(self._redis, self._name)
        # A lease key that a foreign client wrote for an item that was finished, or for a ghost.
        expiring = {key for key in left if await self._redis.pttl(f"{self._name}:{key}") != -1}
        assert all(key.startswith("leased_by_session:") for key in expiring)
        assert left - expiring <= {"fence"}


@pytest.fixture
async def scene(redis: Redis, name: str, start: StartForeign) -> AsyncIterator[Scene]:
    scene = Scene(redis, name, start)
    yield scene
    await scene.end()


def assert_kept(books: Books) -> None:
    """Assert what we promise whoever else is there."""
    assert books.missing == set()
    assert max(books.finished_by_us.values(), default=1) == 1
    for item_id, tokens in books.tokens.items():
        assert tokens == sorted(set(tokens)), f"the numbers of {item_id} do not grow: {tokens}"
    given = [token for tokens in books.tokens.values() for token in tokens]
    assert len(given) == len(set(given))
    # Ghosts are ids that were finished, or the zero that the Node cleaner adds.
    assert books.ghosts.keys() <= books.wanted.keys() | {"0"}


@pytest.mark.parametrize(("producer", "worker", "cleaner"), PAIRINGS, ids=["-".join(p) for p in PAIRINGS])
async def test_every_item_is_finished_whoever_adds_works_and_cleans(
    scene: Scene, producer: Side, worker: Side, cleaner: Side
) -> None:
    books, helped = await scene.run((producer,), (worker, worker), (cleaner,), 40)
    assert_kept(books)
    if worker == "ours":
        assert books.finished_by_us == dict.fromkeys(books.wanted, 1)
    else:
        assert books.finished_by_us == {}
    assert helped == 0
    await scene.assert_empty()


@pytest.mark.timeout(90)
async def test_every_item_is_finished_with_all_nine_at_once(scene: Scene) -> None:
    books, _ = await scene.run(SIDES, SIDES, SIDES, 200)
    assert_kept(books)
    assert books.finished_by_us
    assert books.finished_by_them
    await scene.assert_empty()
