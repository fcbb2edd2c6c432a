"""Moving items between queues: in order, with all they have, in steps that are applied as a whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, InvalidArgument, Item
from leasequeue.errors import QueueDeleted
from leasequeue.queue.queue import engine_of
from tests.lua.space import Call, Space
from tests.queue.asking import take
from tests.queue.keyspace import audit
from tests.stateful.interruption import ALL, Interrupter

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


@pytest.fixture
def other(make_queue: MakeQueue, name: str) -> AsyncWorkQueue:
    return make_queue(name=f"{name}-other")


async def fill(queue: AsyncWorkQueue, *ids: str) -> None:
    assert all(await queue.add_items([Item(f"data {one}".encode(), id=one) for one in ids]))


async def waiting(redis: Redis, queue: AsyncWorkQueue) -> list[str]:
    return [item_id.decode() for item_id in (await audit(redis, queue.name)).waiting]


async def test_items_move_in_their_order_to_the_end(
    queue: AsyncWorkQueue, other: AsyncWorkQueue, redis: Redis
) -> None:
    ids = [f"{n}" for n in range(250)]
    await fill(queue, *ids)
    await fill(other, "first")
    assert await queue.admin.move(other, count=3) == ids[:3]
    assert await queue.admin.move(other.name) == ids[3:]
    assert await waiting(redis, other) == ["first", *ids]
    assert await queue.counts() == (0, 0, 0, 0)
    assert not await redis.keys(f"{queue.name}:*")
    assert [lease.data for lease in await other.lease_many(3, 30)] == [b"data first", b"data 0", b"data 1"]


async def test_a_queue_that_gets_what_was_leased_elsewhere_begins_with_the_first_token(
    queue: AsyncWorkQueue, other: AsyncWorkQueue
) -> None:
    await fill(queue, "released", "failed")
    released, failed = await queue.lease_many(2, 30)
    assert await queue.release(released)
    assert await queue.fail(failed, "again", retry_in=0)
    assert await queue.admin.move(other) == ["released", "failed"]
    assert [lease.token for lease in await other.lease_many(2, 30)] == [1, 2]


async def test_a_queue_that_has_lost_its_counter_gives_no_token_again_after_a_move(
    queue: AsyncWorkQueue, other: AsyncWorkQueue, redis: Redis
) -> None:
    await fill(other, "theirs")
    before = await take(other)
    await redis.delete(f"{other.name}:fence")
    await fill(queue, "a")
    assert await queue.release(await take(queue))
    assert await queue.admin.move(other) == ["a"]
    assert (await take(other)).token > before.token


async def test_the_progress_of_an_item_does_not_stay_behind(
    queue: AsyncWorkQueue, other: AsyncWorkQueue, redis: Redis
) -> None:
    await fill(queue, "a")
    lease = await take(queue)
    assert await queue.progress(lease, 0.5)
    await queue.release(lease)
    assert await queue.admin.move(other) == ["a"]
    assert await redis.keys(f"{queue.name}:*") == [f"{queue.name}:fence".encode()]


async def test_chosen_items_move_whether_they_wait_or_are_scheduled(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str, clock: Clock
) -> None:
    other = make_queue(name=f"{name}-other", clock=clock)
    await fill(queue, *(f"{n}" for n in range(700)))
    await queue.add_item(Item(b"later", id="later"), delay=50)
    await queue.lease(30)
    assert await queue.admin.move(other, ids=["3", "later", "0", "missing", "3", "350"]) == [
        "3",
        "later",
        "350",
    ]
    assert (await other.inspect("scheduled"))[0].due == clock.now + 50
    assert await other.counts() == (2, 0, 1, 0)
    assert [lease.id for lease in await queue.lease_many(700, 30)] == [
        f"{n}" for n in range(1, 700) if n not in (3, 350)
    ]
    assert await redis.get(f"{other.name}:lease:later") == b"lh:scheduled"
    clock.now += 51
    assert [lease.id for lease in await other.lease_many(9, 30)] == ["3", "350", "later"]


async def test_a_tag_or_a_group_named_run_makes_an_item_no_stage(
    queue: AsyncWorkQueue, other: AsyncWorkQueue
) -> None:
    await queue.add_item(Item(b"", id="a"), tags=["run"])
    await queue.add_item(Item(b"", id="b"), group="run")
    assert await queue.admin.move(other, ids=["a", "b"]) == ["a", "b"]


async def test_what_is_no_member_of_a_lane_stops_no_command(
    queue: AsyncWorkQueue, other: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"", id="a"), priority=3)
    await redis.zadd(f"{queue.name}:lanes", {"not a member": 0})
    assert await queue.cancel_data("missing") == []
    assert await queue.admin.move(other) == ["a"]
    await queue.add_item(Item(b"", id="b"), priority=3)
    assert await queue.admin.purge() == 1


async def test_what_is_only_listed_does_not_move(
    queue: AsyncWorkQueue, other: AsyncWorkQueue, redis: Redis
) -> None:
    await fill(queue, "leased", "foreign", "a")
    await take(queue)
    await queue.add_item(Item(b"x", id="later"), delay=50)
    await redis.set(f"{queue.name}:lease:foreign", "another", ex=60)
    await redis.rpush(f"{queue.name}:queue", "ghost", "later", "leased")
    assert await queue.admin.move(other) == ["a"]
    assert await redis.lrange(f"{queue.name}:queue", 0, -1) == [b"foreign"]
    assert await queue.counts() == (1, 1, 1, 0)


async def test_a_caller_that_waits_in_the_other_queue_gets_a_moved_item(
    queue: AsyncWorkQueue, other: AsyncWorkQueue
) -> None:
    leasing = asyncio.create_task(other.lease(30, timeout=120))
    await fill(queue, "a")
    await asyncio.sleep(0.05)
    await queue.admin.move(other)
    lease = await leasing
    assert lease is not None
    assert lease.id == "a"


async def test_both_queues_have_events_of_a_move(queue: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    await queue.events.keep(count=100)
    await other.events.keep(count=100)
    await fill(queue, "a", "b")
    await queue.admin.move(other)
    await fill(queue, "c")
    gone = [event async for event in queue.events(follow=False)][2:]
    assert [(event.what, event.id, event.queue) for event in gone] == [
        ("moved", "a", other.name),
        ("moved", "b", other.name),
        ("added", "c", None),
    ]
    assert [event.number for event in gone] == [*range(gone[0].number, gone[0].number + 3)]
    come = [event async for event in other.events(follow=False)]
    assert [(event.what, event.id, event.size) for event in come] == [("added", "a", 6), ("added", "b", 6)]


async def test_each_item_is_leased_once_though_it_moves_while_both_queues_are_worked_on(
    queue: AsyncWorkQueue, other: AsyncWorkQueue
) -> None:
    ids = [f"{n}" for n in range(600)]
    await fill(queue, *ids)
    seen: list[str] = []

    async def work(one: AsyncWorkQueue) -> None:
        while True:
            is_last = all(moving.done() for moving in moves)
            if lease := await one.lease(30, timeout=0.1):
                seen.append(lease.id)
                assert lease.attempt == 1
                assert await one.complete(lease)
            elif is_last:
                return

    async def move(one: AsyncWorkQueue, another: AsyncWorkQueue) -> None:
        for _ in range(20):
            await one.admin.move(another, count=50)

    moves = [asyncio.create_task(move(queue, other)), asyncio.create_task(move(other, queue))]
    await asyncio.gather(work(queue), work(other), *moves)
    assert sorted(seen, key=int) == ids


@pytest.mark.parametrize("spot", ["queue", "ids", "held", "lanes", "group"])
async def test_an_interrupted_move_leaves_each_item_in_one_queue(
    redis: Redis, redis_url: str, name: str, spot: str
) -> None:
    ids = [f"{n}" for n in range(6)]
    writes, number = ALL, 0
    while number <= writes:
        here, there = f"{name}-{number}", f"{name}-{number}-other"
        async with (
            AsyncWorkQueue.from_url(redis_url, here) as queue,
            AsyncWorkQueue.from_url(redis_url, there) as other,
        ):
            if spot in ("held", "lanes"):
                await queue.add_item(Item(b"x", id="laned"), priority=1)
            if spot == "group":
                await queue.add_items([Item(b"x", id=one) for one in ids], group="g")
            else:
                await fill(queue, *ids)
            await fill(other, "2")
            await queue.fail(await take(queue), "an error", retry_in=0)
            by_id = spot in ("ids", "group")
            rows = [(one,) for one in ids] if by_id else []
            arguments = {"source": here, "spot": "ids" if by_id else spot, "left_out": 0, "now_ms": ""}
            call = Call("move_items", rows, arguments)
            # The first time, it runs to its end.
            run = await Interrupter(Space(redis, there)).run(call, number or ALL)
            writes, number = writes if number else run.writes, number + 1
            expected = {*ids, "laned"} if spot in ("held", "lanes") else {*ids}
            found = []
            for one in (queue, other):
                data = {key async for key in redis.scan_iter(f"{one.name}:item:*")}
                leases = [lease for _ in range(3) for lease in await one.lease_many(50, 30, block=False)]
                assert {f"{one.name}:item:{lease.id}".encode() for lease in leases} == data
                assert len(leases) == len(data)
                assert all(await one.complete_many(leases))
                found += [lease.id for lease in leases]
            assert sorted(found) == sorted([*expected, "2"]), (number, run.commands)


async def test_nothing_moves_to_the_plain_keys_of_a_queue_with_shards(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    await fill(queue, "a")
    await queue.add_item(Item(b"data", id="b"), group="red")
    spread = make_queue(name=f"{name}-64", shards=4)
    await spread.counts()  # notes the shards
    for there in (spread, spread.name):
        with pytest.raises(InvalidArgument, match="a queue without shards"):
            await queue.admin.move(there)
    with pytest.raises(InvalidArgument, match="a queue without shards"):
        await queue.groups.move("red", spread.name)
    assert await queue.counts() == (2, 0, 0, 0)
    assert await redis.exists(f"{spread.name}:queue") == 0
    # One of the same name without shards is another queue, which an object without them names.
    assert await queue.admin.move(make_queue(name=spread.name)) == ["a", "b"]


async def test_what_cannot_be_used_is_refused(queue: AsyncWorkQueue, other: AsyncWorkQueue) -> None:
    await fill(queue, "a")
    for wrong in (queue, queue.name, "", None, "other:item"):
        with pytest.raises(InvalidArgument):
            await queue.admin.move(wrong)  # type: ignore[arg-type]  # that is what is tested
    async with AsyncWorkQueue.from_url("redis://127.0.0.1:1", "elsewhere") as elsewhere:
        with pytest.raises(InvalidArgument, match="same server"):
            await queue.admin.move(elsewhere)
    with pytest.raises(InvalidArgument, match="count"):
        await queue.admin.move(other, count=0)
    with pytest.raises(InvalidArgument, match="not both"):
        await queue.admin.move(other, count=1, ids=["a"])
    with pytest.raises(InvalidArgument, match="ids"):
        await queue.admin.move(other, ids="a")
    await engine_of(other).bulk.run("close_queue", count=1)
    with pytest.raises(QueueDeleted, match=other.name):
        await queue.admin.move(other)
    assert await queue.counts() == (1, 0, 0, 0)
