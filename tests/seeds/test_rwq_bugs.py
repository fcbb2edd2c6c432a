"""The bugs and races of redis-work-queue (RWQ-B…), each as a test that fails when the bug is put back.

`test_mutations.py` puts them back and looks on.

Not here, because there is nothing yet that could have the bug:

    RWQ-B14  int32 milliseconds in the autoscaler             there is no autoscaler yet
    RWQ-B15  its division by zero, its panics                 the same; and our cleaning hangs on no daemon
    RWQ-B17  truncated shares of segmented deployments        the same
    RWQ-B18  a wrong dependency, and a wrong __version__      packaging; tests/house looks after it
    RWQ-B19  library code that prints; two forms of session   `ruff` forbids print, in src and here; all our
                                                              sessions are made in one line
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import AsyncWorkQueue, Item, WrongKeyType
from leasehold.errors import ConnectionLost
from leasehold.queue.engine import Engine
from tests.lua.space import NOW, Space, listed, snapshot
from tests.seeds.family import Clock, Family

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = pytest.mark.core


async def test_rwq_b01_a_light_clean_returns_an_abandoned_item(redis: Redis, name: str) -> None:
    """The Node cleaner asked for the lease key where it meant the data, and dropped what it should return."""
    clock, family = Clock(), Family(redis, name)
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        await queue.add_item(Item(b"work", id="a"))
        assert await family.lease() == "a"
        await family.lose_lease("a")
        await queue.light_clean()
        clock.advance(10)
        await queue.light_clean()
        lease = await queue.lease(30, block=False)
        assert lease is not None, "it is in no list, and its data are still there"
        assert lease.data == b"work"


async def test_rwq_b02_an_add_that_is_cut_short_leaves_nothing_behind(redis: Redis, name: str) -> None:
    """SETNX, then LPUSH: if the second one does not happen, the id is taken for ever and never run."""
    async with AsyncWorkQueue(name, redis) as queue:
        await redis.set(f"{name}:queue", "so that nothing can be pushed")
        with pytest.raises(WrongKeyType):
            await queue.add_item(Item(b"work", id="a"))
        await redis.delete(f"{name}:queue")
        assert await snapshot(redis, name) == {}
        assert await queue.add_item(Item(b"work", id="a")) is True
        assert await queue.queue_len() == 1


async def test_rwq_b03_stale_worker_cannot_complete_a_new_incarnation(redis: Redis, name: str) -> None:
    """With equal ids for equal jobs, the slow worker of the last job threw away the next one."""
    clock = Clock()
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        await queue.add_item(Item(b"yesterday's", id="report"))
        slow = await queue.lease(1, block=False)
        clock.advance(2)
        quick = await queue.lease(30, block=False)
        assert slow is not None
        assert quick is not None
        assert await queue.complete(quick) is True
        await queue.add_item(Item(b"today's", id="report"))

        assert await queue.complete(slow) is False
        today = await queue.lease(30, block=False)
        assert today is not None, "the new item is lost"
        assert await queue.complete(slow) is False
        assert today.data == b"today's"
        assert await queue.complete(today) is True


async def test_rwq_b04_a_completed_item_is_not_handed_out_again(redis: Redis, name: str) -> None:
    """GET, then SETEX: completed in between, it was handed out all the same, and a lease key stayed."""
    family = Family(redis, name)
    async with AsyncWorkQueue(name, redis) as queue:
        await family.add("a")
        assert await family.lease() == "a"
        await family.lose_lease("a")
        await family.light_clean()
        assert await queue.queue_len() == 1, "it waits again; its late worker finishes now"
        assert await family.complete("a") is True
        assert await queue.lease(30, block=False) is None
    assert await snapshot(redis, name) == {}


async def test_rwq_b05_a_cleaner_leaves_alone_what_is_just_being_leased(redis: Redis, name: str) -> None:
    """Between taking the id and writing the lease key an item looks abandoned."""
    clock, family = Clock(), Family(redis, name)
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        await queue.add_item(Item(b"work", id="a"))
        assert await family.take() == "a"
        for _ in range(3):
            await queue.light_clean()
            await queue.deep_clean()
            clock.advance(0.5)
            assert await queue.lease(30, block=False) is None
        await family.write_lease("a")
        clock.advance(60)
        await queue.deep_clean()
        assert await queue.lease(30, block=False) is None, "two workers hold it, and no lease was too short"
        assert await family.complete("a") is True
        await queue.light_clean()
        clock.advance(1000)
        assert (await queue.counts()).total == 0


async def test_rwq_b06_any_number_of_cleaners_puts_an_item_back_once(redis: Redis, name: str) -> None:
    """Look, then push: two cleaners looked, and two pushed."""
    clock, space = Clock(), Space(redis, name)
    async with (
        AsyncWorkQueue(name, redis, clock=clock) as queue,
        AsyncWorkQueue(name, redis, clock=clock) as other,
    ):
        await queue.add_items(Item(b"work", id=f"expired{n}") for n in range(5))
        await queue.lease_many(5, 1, block=False)
        clock.advance(2)
        await asyncio.gather(*(cleaner.light_clean() for cleaner in (queue, other) * 3))
        await space.seed({f"item:orphan{n}": "work" for n in range(5)})
        await asyncio.gather(*(cleaner.deep_clean() for cleaner in (queue, other) * 3))
        waiting = listed((await space.snapshot())["queue"])
    assert sorted(waiting) == [f"{kind}{n}" for kind in ("expired", "orphan") for n in range(5)]


async def test_rwq_b07_a_cleaner_does_not_push_what_was_completed_meanwhile(redis: Redis, name: str) -> None:
    """Seen as there, completed, pushed: a ghost, and a wrong length."""
    space = Space(redis, name)
    await space.seed({"item:a": "work"})
    *_, suspect = await space.run("deep_clean_scan", cursor="0", pattern=f"{name}:item:*", count=1000)
    assert suspect == b"a"
    assert await Family(redis, name).complete("a") is True
    await space.run("deep_clean_restore", [(suspect,)], started_ms=NOW)
    assert await space.snapshot() == {}


async def test_rwq_b08_complete_takes_an_item_out_of_the_queue_too(redis: Redis, name: str) -> None:
    """What a cleaner had put back stayed there as a ghost; added again, the id was in the queue twice."""
    clock = Clock()
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        await queue.add_item(Item(b"first", id="a"))
        late = await queue.lease(1, block=False)
        clock.advance(2)
        await queue.light_clean()
        assert late is not None
        assert await queue.complete(late) is True
        assert await queue.queue_len() == 0, "a ghost"
        await queue.add_item(Item(b"second", id="a"))
        assert await queue.queue_len() == 1
        leases = await queue.lease_many(10, 30, block=False)
        assert [lease.data for lease in leases] == [b"second"]


async def test_rwq_b09_a_ghost_is_not_answered_as_empty(redis: Redis, name: str) -> None:
    """A loop that drains the queue ended at the first ghost."""
    async with AsyncWorkQueue(name, redis) as queue:
        await redis.rpush(f"{name}:queue", *(f"ghost{n}" for n in range(20)))
        await queue.add_item(Item(b"work", id="a"))
        assert await queue.queue_len() == 21
        lease = await queue.lease(30, block=False)
        assert lease is not None, "real work waits behind"
        assert lease.id == "a"
        assert await queue.queue_len() == 0


async def test_rwq_b10_a_clean_that_is_cut_short_loses_nothing(redis: Redis, name: str) -> None:
    """LREM, then LPUSH, in no transaction: if the second one does not happen, the item is in no list."""
    clock = Clock()
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        await queue.add_item(Item(b"work", id="a"))
        await queue.lease(30, block=False)
        clock.advance(31)
        await redis.set(f"{name}:queue", "so that nothing can be pushed")
        before = await snapshot(redis, name)
        with pytest.raises(WrongKeyType):
            await queue.light_clean()
        with pytest.raises(WrongKeyType):
            await queue.lease(30, block=False)
        assert await snapshot(redis, name) == before
        await redis.delete(f"{name}:queue")
        assert await queue.lease(30, block=False) is not None


async def test_rwq_b11_a_deep_clean_that_cannot_read_the_queue_puts_nothing_back(
    redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was never looked at, the queue read as empty, and every waiting item was pushed again."""
    plain_run = Engine.run

    async def without_walks(engine: Engine, script: str, *rest: Any, **arguments: Any) -> Any:
        if script == "deep_clean_walk":
            raise ConnectionLost("cut", maybe_applied=True)
        return await plain_run(engine, script, *rest, **arguments)

    async with AsyncWorkQueue(name, redis) as queue:
        await queue.add_items(Item(b"work", id=f"i{n}") for n in range(10))
        before = await snapshot(redis, name)
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "run", without_walks)
            cleaned = await asyncio.gather(queue.deep_clean(), return_exceptions=True)
        assert await snapshot(redis, name) == before
        assert isinstance(cleaned[0], ConnectionLost), "and it says so"


async def test_rwq_b12_a_deep_clean_keeps_to_its_own_queue_whatever_its_name(redis: Redis, name: str) -> None:
    """`KEYS jobs[1]:item:*` matches the items of `jobs1`, and none of its own."""
    for odd, neighbour in (("[1]", "1"), ("*", "more"), ("?", "x"), ("\\", "\\\\")):
        ours, theirs = Space(redis, f"{name}{odd}"), Space(redis, f"{name}{neighbour}")
        await ours.seed({"item:orphan": "ours"})
        await theirs.seed({"item:orphan": "theirs", "item:another": "theirs"})
        untouched = await theirs.snapshot()
        async with AsyncWorkQueue(ours.prefix, redis) as queue:
            assert (await queue.deep_clean()).restored == 1
        assert await ours.snapshot() == {"item:orphan": "ours", "queue": ["orphan"]}
        assert await theirs.snapshot() == untouched


async def test_rwq_b13_times_below_a_second_are_what_they_say(redis: Redis, name: str) -> None:
    """A timeout below 1 s was cut to 0, which is for ever; a lease below 1 s failed after taking the item."""
    clock = Clock()
    async with AsyncWorkQueue(name, redis, clock=clock) as queue:
        waiting = asyncio.ensure_future(queue.lease(0.25, timeout=0.01))
        await asyncio.wait([waiting], timeout=2)
        assert waiting.done(), "it waits for ever"
        assert await waiting is None

        await queue.add_item(Item(b"work", id="a"))
        assert await queue.lease(0.25, block=False) is not None
        clock.advance(0.2)
        assert await queue.lease(0.25, block=False) is None
        clock.advance(0.1)
        assert await queue.lease(0.25, block=False) is not None


async def test_rwq_b16_counts_are_of_one_instant(redis: Redis, name: str) -> None:
    """Two reads: an item that moves between them is counted twice, or not at all."""
    async with AsyncWorkQueue(name, redis) as queue:
        await queue.add_item(Item(b"work"))
        seen = set[int]()
        for _ in range(20):
            counts, lease = await asyncio.gather(queue.counts(), queue.lease(30, block=False))
            assert lease is not None
            counts_again, released = await asyncio.gather(queue.counts(), queue.release(lease))
            assert released
            seen |= {counts.total, counts_again.total}
        assert seen == {1}
