"""A key is taken while an item with it waits or is scheduled, until its first run begins."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item, TaskQueue
from leasequeue.errors import InvalidArgument, InvalidCall
from tests.queue.asking import take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core

KEY = '"unstarted":"\\ü'


async def add(queue: AsyncWorkQueue, item_id: str, key: str = KEY, **options: Any) -> bool:
    return await queue.add_item(Item(b"", id=item_id), unique_until_start=key, **options)


@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"priority": 2}])
async def test_a_second_one_is_refused_while_the_first_waits(
    queue: AsyncWorkQueue, options: dict[str, Any]
) -> None:
    assert await add(queue, "a", **options)
    assert not await add(queue, "b")
    assert await queue.add_or_find(Item(b"", id="b"), unique_until_start=KEY) == ("a", False)
    assert await queue.add_or_find(Item(b"", id="c"), unique_until_start="other") == ("c", True)
    assert await queue.find("b") is None
    assert await queue.add_items([Item(b"", id=one) for one in "def"], unique_until_start="x") == [
        *(True, False, False)
    ]


async def test_one_that_is_added_while_the_first_runs_is_kept(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    assert await add(queue, "a")
    first = await take(queue)
    assert await add(queue, "b")
    assert not await add(queue, "c")
    assert await queue.complete(first)
    assert not await add(queue, "c")
    second = await take(queue)
    assert (second.id, await queue.lease(30, block=False)) == ("b", None)
    assert await queue.complete(second)
    assert await left_over(redis, name) == set()
    assert await add(queue, "a")


@pytest.mark.parametrize("end", ["expire", "retry", "retry later", "release"])
async def test_an_item_that_returns_was_started(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str, end: str
) -> None:
    assert await add(queue, "a")
    lease = await take(queue)
    if end == "expire":  # its worker was killed
        clock.now += 31
        await queue.light_clean()
    elif end == "release":
        assert await queue.release(lease)
    else:
        assert await queue.fail(lease, "why", retry_in=60 if end == "retry later" else 0)
    assert await add(queue, "b")
    await audit(redis, name)


async def test_a_released_item_stands_for_no_key_again(queue: AsyncWorkQueue) -> None:
    """Its late completion is accepted, so that its run may have begun before the change."""
    assert await add(queue, "a")
    released = await take(queue)
    assert await queue.release(released)
    assert await add(queue, "b")
    assert not await add(queue, "c")
    assert await queue.complete(released)
    assert (await take(queue)).id == "b"
    assert (await queue.admin.fsck()).findings == ()


@pytest.mark.parametrize("shards", [None, 2])
async def test_each_group_has_its_own_keys(redis: Redis, name: str, shards: int | None) -> None:
    by_group: Any = {"shards": shards, "shard_by": "group"} if shards else {}
    async with AsyncWorkQueue(name, redis, **by_group) as queue:
        groups = [f"g{number}" for number in range(8)]
        assert [await add(queue, f"{group}-1", group=group) for group in groups] == [True] * 8
        assert [await add(queue, f"{group}-2", group=group) for group in groups] == [False] * 8


@pytest.mark.parametrize("end", ["complete", "cancel", "purge", "discard", "die", "delete", "vanish"])
async def test_an_item_that_has_ended_leaves_nothing(
    queue: AsyncWorkQueue, clock: Clock, redis: Redis, name: str, end: str
) -> None:
    assert await add(queue, "a", expires_in=60)
    if end == "complete":
        assert await queue.complete(await take(queue))
    elif end == "cancel":
        assert await queue.cancel("a", keep=0)
    elif end == "purge":
        assert await queue.admin.purge() == 1
    elif end == "discard":
        clock.now += 61
    elif end == "die":
        assert await queue.fail(await take(queue), "why")
        assert await queue.dead_letters.requeue("a")
    elif end == "delete":
        assert await queue.admin.delete() == 1
    else:  # a client of another library has completed it
        await redis.delete(f"{name}:item:a")
    assert await add(queue, "b")
    assert await queue.admin.fsck() is not None
    await audit(redis, name)
    if end != "die":
        assert await queue.complete(await take(queue))
        assert await redis.hgetall(f"{name}:unstarted") == {}


async def test_an_item_that_is_replaced_has_its_new_key(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    assert await add(queue, "a", "old")
    assert await add(queue, "b", "taken")
    assert await add(queue, "a", "old", replace=True)
    assert not await add(queue, "a", "taken", replace=True)
    assert await add(queue, "a", "new", replace=True)
    await audit(redis, name)
    assert await add(queue, "c", "old")
    assert not await add(queue, "d", "new")
    await queue.add_unique_item(Item(b"", id="a"))
    assert await add(queue, "d", "new")
    await audit(redis, name)


async def test_an_item_that_a_foreign_client_has_leased_was_started(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    assert await add(queue, "a")
    await redis.set(f"{name}:lease:a", "theirs", px=60_000)
    assert await add(queue, "b")


async def test_a_key_moves_with_its_item(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    source, target = make_queue(), make_queue(name=f"{name}-other")
    assert await add(source, "a")
    assert await source.admin.move(target) == ["a"]
    assert not await add(target, "b")
    assert await add(source, "b")
    await audit(redis, name)
    await audit(redis, f"{name}-other")


async def test_fsck_repairs_the_keys(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    assert await add(queue, "running", "1")
    await take(queue)
    assert await add(queue, "waiting", "2")
    await redis.delete(f"{name}:unstarted")
    await redis.hset(f"{name}:unstarted", mapping={"3": "gone", "4": "waiting"})
    report = await queue.admin.fsck()
    assert {str(one.problem): one.count for one in report.findings} == {
        "stale_unstarted": 2,
        "lost_unstarted": 1,
    }
    assert await redis.hgetall(f"{name}:unstarted") == {b"2": b"waiting"}
    assert (await queue.admin.fsck()).findings == ()


async def test_the_job_is_the_one_that_waits(redis: Redis, name: str) -> None:
    async with TaskQueue(name, redis) as tasks:

        @tasks.task
        async def index(page: str) -> None: ...

        once = index.options(unique_until_start="index-7")
        first, second = await once.add("a"), await once.add("b")
        assert (first.created, second.created, second.id) == (True, False, first.id)
        third, fourth, fifth = await tasks.add_many([index.call("c"), once.call("d"), once.call("e")])
        assert (third.created, fourth.created, fifth.created) == (True, False, False)
        assert fourth.id == fifth.id == first.id != third.id
        with pytest.raises(InvalidCall, match="unique_until_start"):
            once.call("f").chain()


async def test_what_cannot_be_used_is_refused(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    for key in ("", "x" * 513, "\ud800", 7):
        with pytest.raises(InvalidArgument, match="unique_until_start"):
            await add(queue, "a", key)  # type: ignore[arg-type] # what is refused
    sharded = make_queue(name=f"{queue.name}-sharded", shards=2)
    with pytest.raises(InvalidArgument, match="shard_by='group' and a group"):
        await add(sharded, "a")


#: Leases items, and notes the version that it has read; it stops where it is told to be killed.
WORKER = """
import asyncio, sys
from leasequeue import AsyncWorkQueue
from redis.asyncio import Redis

async def work(url, name, step):
    redis = Redis.from_url(url)

    async def reach(one):
        if one == step:
            print(one, flush=True)
            await asyncio.Event().wait()

    async with AsyncWorkQueue.from_url(url, name) as queue:
        while True:
            lease = await queue.lease(0.5 if step else 60)
            await reach("leased")
            version = await redis.get(name + "-version")
            await reach("read")
            await redis.set(name + "-seen", version)
            await queue.complete(lease)
            await reach("completed")

asyncio.run(work(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_the_last_change_is_seen_whenever_workers_are_killed(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    """Each change comes before its add, so that a run begins after it, whether or not it was added."""
    version = 0

    async def change() -> None:
        nonlocal version
        version += 1
        await redis.set(f"{name}-version", version)
        await add(queue, f"index-{version}", "index")

    async def start(step: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER, redis_url, name, step, stdout=asyncio.subprocess.PIPE
        )

    for step in ("leased", "read", "completed"):
        await change()
        await change()
        worker = await start(step)
        assert worker.stdout is not None
        assert (await worker.stdout.readline()).decode().strip() == step
        await change()
        worker.kill()
        await worker.wait()
        await change()
    worker = await start("")

    async def is_seen() -> bool:
        return await redis.get(f"{name}-seen") == b"%d" % version and sum((await queue.counts())[:3]) == 0

    try:
        await until("the last change is seen", is_seen)
        for _ in range(50):
            await change()
        await until("the last of many changes is seen", is_seen)
    finally:
        worker.kill()
        await worker.wait()
    await audit(redis, name)


async def test_a_new_level_gives_no_started_item_its_key_again(queue: AsyncWorkQueue) -> None:
    assert await add(queue, "a")
    assert await queue.set_priority("a", 1)
    assert not await add(queue, "b"), "it was not started, and has the key"
    [lease] = await queue.lease_many(1, 60)
    assert await queue.fail(lease, "an error", retry_in=60)
    assert await add(queue, "b")
    assert await queue.set_priority("a", 3)
    assert not await add(queue, "c"), "b waits"


@pytest.mark.parametrize("end", ["failed", "released"])
async def test_a_started_item_that_is_moved_takes_no_key(make_queue: MakeQueue, name: str, end: str) -> None:
    """Where it goes, another one waits with the key."""
    here, there = make_queue(), make_queue(name=f"{name}-there")
    assert await add(here, "a", group="g")
    [lease] = await here.lease_many(1, 60)
    if end == "failed":
        assert await here.fail(lease, "an error", retry_in=60)
    else:
        assert await here.release(lease)
    assert await add(there, "b", group="g")
    assert await here.groups.move("g", there.name) == ["a"]
    assert not await add(there, "c", group="g"), "b waits"
    assert await there.set_priority("a", 1)
    assert not await add(there, "d", group="g"), "b waits"
