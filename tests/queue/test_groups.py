"""Groups are listed and counted, and what one has is found, purged, cancelled and moved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.errors import InvalidArgument
from leasequeue.views import GroupCounts
from tests.lua.space import Call, Space
from tests.queue.asking import take
from tests.queue.keyspace import calls, left_over
from tests.stateful.interruption import Interrupter

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.views import ItemView
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def add(queue: AsyncWorkQueue, group: str | None, *ids: str, **options: Any) -> None:
    await queue.add_items([Item(f"data {one}", id=one) for one in ids], group=group, **options)


async def fill(queue: AsyncWorkQueue) -> None:
    """Add items of two groups, in each state and on three levels, and of none."""
    await add(queue, "a", "a-leased", "b", priority=9)
    lease = await take(queue)
    await queue.release(await take(queue), delay=600)
    assert lease.id == "a-leased"
    await add(queue, "a", "a1", "a2")
    await add(queue, "a", "a-low", priority=-3)
    await add(queue, "a", "a-high", priority=3)
    await add(queue, "a", "a-later", delay=60)
    await add(queue, "aa", "aa1", "aa2", priority=3)
    await add(queue, None, "plain")
    await add(queue, None, "urgent", priority=5)


async def check(*queues: AsyncWorkQueue) -> None:
    """Check that each key agrees with the others: every item is in one place, and no other is in any."""
    for queue in queues:
        assert (await queue.admin.fsck()).findings == ()


def told(view: ItemView) -> tuple[Any, ...]:
    """Return what moves with an item."""
    due = None if view.due is None else round(view.due)
    return view.id, view.state, view.data, view.priority, view.group, view.tags, view.attempt, due


async def found(queue: AsyncWorkQueue, group: str, **how: Any) -> list[str]:
    return [one.id for one in await queue.groups.find(group, **how)]


async def test_groups_are_listed_counted_and_found_in_each_state(queue: AsyncWorkQueue) -> None:
    await fill(queue)
    await add(queue, "only later", "z", delay=60)
    assert await queue.groups.list() == {"a": (4, 1, None), "aa": (2, 0, None)}
    assert await queue.groups.list(everywhere=True) == {
        "a": (4, 1, 2),
        "aa": (2, 0, 0),
        "only later": (0, 0, 1),
    }
    assert await queue.groups.list(count=1, everywhere=True) == {"a": (4, 1, 2)}
    assert await queue.groups.list(after="a", count=1) == {"aa": (2, 0, None)}
    assert await queue.groups.list(after="aa", everywhere=True) == {"only later": (0, 0, 1)}
    assert await queue.groups.count("a", scheduled=True) == GroupCounts(4, 1, 2)
    assert await queue.groups.count("b") == (0, 0, None)
    assert await found(queue, "a") == ["a-leased", "a-high", "a1", "a2", "a-low", "a-later", "b"]
    assert await found(queue, "a", count=2) == ["a-leased", "a-high"]
    next_ones = await queue.groups.peek("a", 3)
    assert [(one.id, one.data) for one in next_ones] == [
        ("a-high", b"data a-high"),
        ("a1", b"data a1"),
        ("a2", b"data a2"),
    ]
    [unread] = await queue.groups.peek("aa", data=False)
    assert (unread.id, unread.data, unread.size) == ("aa1", None, 8)


async def test_purging_a_group_removes_what_waits_of_it(queue: AsyncWorkQueue) -> None:
    await fill(queue)
    await add(queue, "a", *(f"n{number}" for number in range(300)))
    assert await queue.groups.purge("a") == 304
    assert await queue.groups.purge("a") == 0
    assert await found(queue, "a") == ["a-leased", "a-later", "b"]
    assert [one.id for one in await queue.peek(9)] == ["urgent", "aa1", "aa2", "plain"]
    await check(queue)


async def test_a_purge_that_is_interrupted_after_any_write_is_finished_by_the_next(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    interrupter, writes, run = Interrupter(Space(redis, name)), 0, None
    while run is None or not run.ended:
        await fill(queue)
        call = Call(
            "purge_queue",
            arguments={"source": "lanes", "of_group": "a", "count": 250, "purged": 0, "now_ms": ""},
        )
        run = await interrupter.run(call, writes)
        assert {*await found(queue, "aa")} == {"aa1", "aa2"}, run.commands
        await queue.groups.purge("a")
        assert await found(queue, "a") == ["a-leased", "a-later", "b"], run.commands
        await queue.admin.fsck()
        leases = await queue.lease_many(9, 30, block=False)
        assert [one.id for one in leases] == ["urgent", "aa1", "aa2", "plain"], run.commands
        await queue.admin.delete()
        writes += 1
    assert writes > 4


async def test_cancelling_a_group_ends_it_in_each_state(queue: AsyncWorkQueue) -> None:
    await fill(queue)
    await add(queue, "a", *(f"n{number}" for number in range(300)))
    await add(queue, "a", *(f"s{number}" for number in range(150)), delay=9)
    assert await queue.groups.cancel("a") == 457
    assert await queue.groups.count("a", scheduled=True) == (0, 0, 0)
    assert await queue.results.is_cancelled("a-leased")
    assert (await queue.counts()).total == 4
    await check(queue)


async def test_a_group_moves_with_its_order_and_options(make_queue: MakeQueue, name: str) -> None:
    source, target = make_queue(), make_queue(name=f"{name}-other")
    await fill(source)
    await add(target, None, "a2")
    await add(source, "a", *(f"n{number:03}" for number in range(250)), tags=["t"])
    before = await source.groups.find("a", count=999)
    moved = await source.groups.move("a", target.name)
    assert sorted(moved) == sorted({one.id for one in before} - {"a-leased", "a2"})
    assert await source.groups.count("a", scheduled=True) == (1, 1, 0)
    after = await target.groups.find("a", count=999)
    assert [told(one) for one in after] == [told(one) for one in before if one.id in moved]
    assert (await target.tags.list(), await source.tags.list()) == ({"t": 250}, {})
    assert [one.id for one in await source.peek(9)] == ["urgent", "aa1", "aa2", "plain", "a2"]
    await check(source, target)


async def test_what_is_on_its_way_to_a_worker_is_of_its_group(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """An id is moved from its lane to `queue` to wake a session; if that is dead, it stays there."""
    queue = make_queue()
    other = make_queue(name=f"{name}-other")
    await redis.zadd(f"{name}:sessions", {"lh:dead": 2**50})
    for act in (queue.groups.purge, queue.groups.cancel):
        await add(queue, "a", "x")
        assert await redis.lrange(f"{name}:queue", 0, -1) == [b"x"], "that is what the test is about"
        assert (await queue.groups.count("a")).waiting == 1
        assert await found(queue, "a") == ["x"]
        assert await act("a") == 1
        assert await redis.lrange(f"{name}:queue", 0, -1) == []
    await add(queue, "a", "x")
    assert await queue.groups.move("a", other.name) == ["x"]
    assert await redis.lrange(f"{name}:queue", 0, -1) == []
    assert await queue.groups.count("a") == (0, 0, None)


async def test_nothing_is_lost_while_a_group_moves_under_load(make_queue: MakeQueue, name: str) -> None:
    """Producers add, and a worker leases, while the group moves; the mover is cancelled and begins again."""
    source, target = make_queue(), make_queue(name=f"{name}-other")
    await add(source, "a", *(f"i{number:04}" for number in range(600)))
    done: set[str] = set()
    moving = asyncio.create_task(source.groups.move("a", target.name))
    for number in range(20):
        await add(source, "a", f"new{number}")
        for lease in await source.lease_many(3, 60, block=False):
            assert await source.complete(lease)
            done.add(lease.id)
        if number == 3:
            moving.cancel()
            await asyncio.wait([moving])
            moving = asyncio.create_task(source.groups.move("a", target.name))
    await moving
    await source.groups.move("a", target.name)
    assert await source.groups.count("a", scheduled=True) == (0, 0, 0)
    left = {one.id for one in await target.groups.find("a", count=1000, data=False)}
    assert not left & done
    assert len(left | done) == 620
    await check(source, target)


async def test_looking_at_groups_writes_nothing(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await add(queue, None, "plain")
    assert await queue.groups.list(everywhere=True) == {}
    assert await queue.groups.count("a", scheduled=True) == (0, 0, 0)
    assert await found(queue, "a") == []
    assert await queue.groups.purge("a") == await queue.groups.cancel("a") == 0
    assert await left_over(redis, name) == {f"{name}:queue".encode(), f"{name}:item:plain".encode()}


async def test_few_items_of_a_group_are_found_in_few_trips(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_items([Item(b"", id=f"{n}") for n in range(1000)], group="other", delay=60)
    await add(queue, "g", "one", delay=60)
    before = await calls(redis, "evalsha", "eval", "fcall")
    assert await found(queue, "g", count=1) == ["one"]
    assert await calls(redis, "evalsha", "eval", "fcall") - before <= 10


async def test_a_group_whose_items_have_vanished_costs_no_other_an_item(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    """Its lane keeps its turn in the call that finds it so, while lanes after it are parked."""
    await queue.limits.set(group="*", concurrency=3)
    await add(queue, "a", "a1")
    await add(queue, "b", "b1", "b2", "b3", "b4", "b5")
    for group in "cd":
        await add(queue, group, f"{group}1")
        await queue.pause(group=group)
    await redis.unlink(f"{queue.name}:item:a1")
    leases = await queue.lease_many(4, 60)
    assert [lease.id for lease in leases] == ["b1", "b2", "b3"]
    assert await queue.complete_many(leases) == [True] * 3
    assert [lease.id for lease in await queue.lease_many(4, 60)] == ["b4", "b5"]
    assert (await queue.counts()).waiting == 2


@pytest.mark.parametrize("group", ["", "*", "a\0b", "a" * 257, "\ud800", 7], ids=repr)
async def test_what_is_no_group_is_refused(queue: AsyncWorkQueue, group: Any) -> None:
    for call in (queue.groups.count, queue.groups.find, queue.groups.purge, queue.groups.cancel):
        with pytest.raises(InvalidArgument, match="group"):
            await call(group)
    with pytest.raises(InvalidArgument, match="group"):
        await queue.groups.move(group, "other")
    with pytest.raises(InvalidArgument, match="name of another queue"):
        await queue.groups.move("a", queue.name)


@pytest.mark.parametrize("by", ["id", "group"])
async def test_groups_of_a_queue_with_shards(redis: Redis, name: str, by: Any) -> None:
    async with AsyncWorkQueue(name, redis, shards=4, shard_by=by) as queue:
        await add(queue, "a", *(f"i{number:02}" for number in range(20)))
        await add(queue, "b", "b")
        await add(queue, "a", "later", delay=60)
        await add(queue, "a", "first", priority=3)
        assert await queue.groups.list(everywhere=True) == {"a": (21, 0, 1), "b": (1, 0, 0)}
        assert await queue.groups.count("a") == (21, 0, None)
        used = sum([bool((await one.counts()).total) for one in queue.shards])
        assert used > 2 if by == "id" else used <= 2
        assert [one.id for one in await queue.groups.peek("a")] == ["first"]
        assert len(await queue.groups.find("a", count=5)) == 5
        assert await found(queue, "a") == [*await found(queue, "a", count=21), "later"]
        with pytest.raises(InvalidArgument, match="a queue without shards, or one of its 4 `shards`"):
            await queue.groups.move("a", "other")
        assert await queue.groups.purge("a") == 21
        assert await queue.groups.cancel("a") == 1
        assert await queue.groups.list(everywhere=True) == {"b": (1, 0, 0)}
