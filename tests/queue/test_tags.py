"""Items and dead letters are found, counted, cancelled and requeued by their tags."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import InvalidArgument, JobCancelled
from leasequeue.views import DeadLetter
from tests.queue.asking import take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def add(queue: AsyncWorkQueue, item_id: str, *tags: str, **options: Any) -> bool:
    return await queue.add_item(Item(b"data", id=item_id), tags=tags, **options)


async def found(queue: AsyncWorkQueue, tag: str, **how: Any) -> list[str]:
    return [one.id for one in await queue.tags.find(tag, **how)]


async def test_items_are_found_and_counted_by_tag_in_each_state(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await add(queue, "leased", "blue", "red")
    await take(queue)
    await add(queue, "waiting", "red", "red")
    await add(queue, "later", "red", delay=60)
    await add(queue, "plain")
    assert await found(queue, "red") == ["later", "leased", "waiting"]
    assert await found(queue, "blue") == ["leased"]
    assert await found(queue, "re") == await found(queue, "red\x01") == []
    assert await queue.tags.list() == {"blue": 1, "red": 3}
    assert (await queue.tags.count("red"), await queue.tags.count("re")) == (3, 0)
    views = await queue.tags.find("red", data=False)
    assert [(one.data, one.size) for one in views] == [(None, 4)] * 3
    item = await queue.find("leased")
    assert item is not None
    assert item.tags == ("blue", "red")
    await audit(redis, name)


async def test_pages_of_ids_and_of_tags(queue: AsyncWorkQueue) -> None:
    for number in range(7):
        await add(queue, f"i{number}", "all", f"t{number}")
    assert await found(queue, "all", count=3) == ["i0", "i1", "i2"]
    assert await found(queue, "all", after="i2", count=3) == ["i3", "i4", "i5"]
    assert await found(queue, "all", after="i6") == []
    assert await queue.tags.list(count=2) == {"all": 7, "t0": 1}
    assert await queue.tags.list(after="t0", count=2) == {"t1": 1, "t2": 1}
    assert await queue.tags.list(after="t6") == {}


@pytest.mark.parametrize("end", ["complete", "cancel", "purge", "expire", "delete"])
async def test_an_item_that_has_ended_has_no_tags(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock, end: str
) -> None:
    await add(queue, "a", "red", expires_in=60)
    if end == "complete":
        assert await queue.complete(await take(queue))
    elif end == "cancel":
        assert await queue.cancel("a", keep=0)
    elif end == "purge":
        assert await queue.admin.purge() == 1
    elif end == "expire":
        clock.now += 61
        assert await queue.lease(30, block=False) is None
    else:
        assert await queue.admin.delete() == 1
    assert await queue.tags.list() == {}
    assert f"{name}:tags".encode() not in await left_over(redis, name)


async def test_a_dead_letter_keeps_its_tags_until_it_is_dropped(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    for item_id in ("a", "b", "c"):
        await add(queue, item_id, "red")
        await queue.fail(await take(queue), "why")
    await audit(redis, name)
    [one, *_] = await queue.tags.find("red")
    assert isinstance(one, DeadLetter)
    assert (one.id, one.data, one.error) == ("a", b"data", "why")
    assert await queue.dead_letters.drop("a", "a") == [True, False]
    await audit(redis, name)
    assert await queue.tags.requeue("red") == 2
    assert await queue.tags.requeue("red") == 0
    assert (await queue.counts()).waiting == await queue.tags.count("red") == 2
    await audit(redis, name)
    await queue.fail(await take(queue), "again")
    assert await queue.dead_letters.drop_all() == 1
    assert await found(queue, "red") == ["c"]
    await audit(redis, name)


async def test_an_item_and_a_dead_letter_of_one_id_have_different_tags(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await add(queue, "a", "both", "old")
    await queue.fail(await take(queue), "why")
    await add(queue, "a", "both", "new")
    assert await queue.tags.list() == {"both": 1, "new": 1, "old": 1}
    assert len(await queue.tags.find("both")) == 2
    assert [type(one) for one in await queue.tags.find("old")] == [DeadLetter]
    lease = await take(queue)
    await audit(redis, name)
    assert await queue.complete(lease)
    assert await queue.tags.list() == {"both": 1, "old": 1}
    await add(queue, "a", "both", "third")
    await queue.fail(await take(queue), "a newer dead letter replaces the older one")
    assert await queue.tags.list() == {"both": 1, "third": 1}
    await audit(redis, name)


async def test_an_item_that_is_replaced_has_its_new_tags(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await add(queue, "a", "old", "both")
    assert not await add(queue, "a", "refused")
    assert await add(queue, "a", "new", "both", replace=True)
    assert await queue.tags.list() == {"both": 1, "new": 1}
    await queue.add_unique_item(Item(b"data", id="a"))
    assert await queue.tags.list() == {}
    await audit(redis, name)


async def test_cancelling_by_tag_leaves_others_and_dead_letters(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"", id=f"i{number}") for number in range(600)], tags=["red"])
    await queue.lease_many(5, 60)
    await add(queue, "dead", "red", priority=5)
    await queue.fail(await take(queue), "why")
    await add(queue, "blue", "blue")
    assert await queue.tags.cancel("red") == 600
    assert await queue.tags.list() == {"blue": 1, "red": 1}
    assert (await queue.counts())[:] == (1, 0, 0, 1)
    with pytest.raises(JobCancelled):
        await queue.results.wait("i7", timeout=1)
    await audit(redis, name)


async def test_tags_move_with_an_item(make_queue: MakeQueue, name: str) -> None:
    source, target = make_queue(), make_queue(name=f"{name}-other")
    await add(source, "a", "red")
    await add(source, "b", "red")
    await source.fail(await take(source), "why")
    assert await source.admin.move(target) == ["b"]
    assert (await source.tags.list(), await target.tags.list()) == ({"red": 1}, {"red": 1})
    assert await found(target, "red") == ["b"]


async def test_fsck_repairs_the_index(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await add(queue, "dead", "red")
    await queue.fail(await take(queue), "why")
    await add(queue, "alive", "red")
    await redis.delete(f"{name}:tags")
    await redis.zadd(f"{name}:tags", {b"red\0gone": 0, b"blue\0alive": 0, b"no tag": 0})
    report = await queue.admin.fsck()
    repairs = {str(one.problem): one.count for one in report.findings}
    assert repairs == {"stale_tag": 3, "lost_tag": 2}
    assert await queue.tags.list() == {"red": 2}
    assert (await queue.admin.fsck()).findings == ()


async def test_nothing_is_written_for_items_without_tags(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await add(queue, "a")
    assert await left_over(redis, name) == {f"{name}:queue".encode(), f"{name}:item:a".encode()}


async def test_a_tag_may_be_any_text(queue: AsyncWorkQueue) -> None:
    tags = ['"tags":["x"]', '"group":"g"', "ü\x01", " ", "a" * 256, '"run"', "\\", "\n"]
    await add(queue, "a", *tags, group="g")
    assert list(await queue.tags.list()) == sorted(tags, key=str.encode)
    assert [await found(queue, tag) for tag in tags] == [["a"]] * len(tags)
    assert (await queue.inspect("waiting"))[0].group == "g"
    assert await queue.complete(await take(queue))
    assert await queue.tags.list() == {}


#: Leases, completes, fails and adds without end; it says when it has done so some times.
WORKER = """
import asyncio, sys
from leasequeue import AsyncWorkQueue, Item

async def work():
    async with AsyncWorkQueue.from_url(sys.argv[1], sys.argv[2]) as queue:
        for number in range(10**9):
            lease = await queue.lease(3600)
            if number % 3:
                await queue.fail(lease, "why")
            else:
                await queue.add_item(Item(b"", id=f"{lease.id}+"), tags=["red", "made"])
                await queue.complete(lease)
            if number % 20 == 7:
                print(number, flush=True)

asyncio.run(work())
"""


@pytest.mark.slow
async def test_the_index_agrees_with_the_items_after_workers_were_killed(
    redis: Redis, redis_url: str, name: str
) -> None:
    """Items are added, cancelled and requeued by tag while workers are killed: it needs no fsck."""
    async with AsyncWorkQueue.from_url(redis_url, name) as queue:
        numbers, requeued = iter(range(10**6)), 0
        for _ in range(2):
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", WORKER, redis_url, name), stdout=asyncio.subprocess.PIPE
            )
            try:
                assert worker.stdout is not None
                for turn in range(2):
                    told = asyncio.create_task(worker.stdout.readline())
                    while not told.done():
                        ids = [f"i{next(numbers)}" for _ in range(10)]
                        await queue.add_items([Item(b"", id=one) for one in ids], tags=["red", f"t{turn}"])
                        requeued += await queue.tags.requeue("t0")
                        await queue.tags.cancel("t1")
                        await asyncio.wait([told], timeout=0.01)
                    assert told.result(), "the worker works"
            finally:
                worker.kill()
                await worker.wait()
        assert requeued
        await queue.admin.clear_leases()
        await queue.fail(await queue.lease(30), "why")  # whether a dead letter is left from before is chance
        places = await audit(redis, name)
        assert places.waiting
        assert places.dead
        for tag, count in (await queue.tags.list()).items():
            assert len(await queue.tags.find(tag, count=1000)) == min(count, 1000)


@pytest.mark.parametrize(
    "tags",
    ["red", [""], ["a\0b"], ["a" * 257], [7], ["\ud800"], [str(number) for number in range(21)], {"a": 1}, 7],
    ids=repr,
)
async def test_tags_that_cannot_be_used_are_refused(queue: AsyncWorkQueue, tags: Any) -> None:
    with pytest.raises(InvalidArgument, match="tag"):
        await queue.add_item(Item(b""), tags=tags)
    assert (await queue.counts()).total == 0


async def test_tags_of_a_queue_with_shards(redis: Redis, name: str) -> None:
    async with AsyncWorkQueue(name, redis, shards=4) as queue:
        await queue.add_items([Item(b"", id=f"i{number:02}") for number in range(30)], tags=["red"])
        assert (await queue.tags.count("red"), await queue.tags.list()) == (30, {"red": 30})
        assert await found(queue, "red", count=5) == [f"i{number:02}" for number in range(5)]
        assert await found(queue, "red", after="i24") == [f"i{number:02}" for number in range(25, 30)]
        await queue.fail_many([])
        assert await queue.tags.cancel("red") == 30
        assert await queue.tags.list() == {}
