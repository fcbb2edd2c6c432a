"""A key of the wrong type is an error for the calls that need it, and no call is half applied."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item, Lease, WrongKeyType
from tests.queue.keyspace import audit, glob, snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core

#: The keys of a queue, with what each ought to hold.
KEYS = {
    "queue": "list",
    "processing": "list",
    "gone": "zset",
    "deadlines": "zset",
    "scheduled": "zset",
    "sessions": "zset",
    "ledger": "hash",
    "fence": "counter",
    "fence ": "number",
    "schedules": "hash",
    "ticks": "zset",
}
OPERATIONS: dict[str, Callable[[AsyncWorkQueue, list[Lease]], Awaitable[Any]]] = {
    "add_item": lambda q, _: q.add_item(Item(b"new", id="new")),
    "add_item again": lambda q, _: q.add_item(Item(b"new", id="waits")),
    "add_item, delayed": lambda q, _: q.add_item(Item(b"new", id="new"), delay=5),
    "add_items": lambda q, _: q.add_items([Item(b"1", id="new"), Item(b"2", id="newer")]),
    "add_unique_item": lambda q, _: q.add_unique_item(Item(b"new", id="new")),
    "add_unique_item again": lambda q, _: q.add_unique_item(Item(b"new", id="leased")),
    "lease": lambda q, _: q.lease(30, block=False),
    "lease, waiting": lambda q, _: q.lease_many(1000, 30, timeout=30),
    "lease_many": lambda q, _: q.lease_many(1000, 30, block=False),
    "complete": lambda q, leases: q.complete(leases[0]),
    "complete, expired": lambda q, leases: q.complete(leases[1]),
    "complete, released": lambda q, leases: q.complete(leases[2]),
    "complete_many": lambda q, leases: q.complete_many(leases),
    "renew": lambda q, leases: q.renew(leases[0], 30),
    "renew_many": lambda q, leases: q.renew_many(leases, 30),
    "release": lambda q, leases: q.release(leases[0]),
    "release, end": lambda q, leases: q.release(leases[0], front=False),
    "release, delayed": lambda q, leases: q.release(leases[0], delay=30),
    "release_many": lambda q, leases: q.release_many(leases),
    "counts": lambda q, _: q.counts(),
    "inspect": lambda q, _: q.inspect(),
    "inspect leased": lambda q, _: q.inspect("leased"),
    "inspect scheduled": lambda q, _: q.inspect("scheduled"),
    "find": lambda q, _: q.find("leased"),
    "schedule.every": lambda q, _: q.schedules.every(5, "new"),
    "schedule.every again": lambda q, _: q.schedules.every(60, "due"),
    "schedule.list": lambda q, _: q.schedules.list(),
    "schedule.remove": lambda q, _: q.schedules.remove("due"),
    "schedule.tick": lambda q, _: q.schedules.tick(),
    "light_clean": lambda q, _: q.light_clean(),
    "deep_clean": lambda q, _: q.deep_clean(),
}


async def fill(queue: AsyncWorkQueue, clock: Clock) -> list[Lease]:
    """Put an item into each state: leased, expired, released, waiting, delayed, and due."""
    names = ("leased", "expired", "back", "waits")
    await queue.add_items([Item(b"data", id=item_id) for item_id in names])
    await queue.add_item(Item(b"data", id="delayed"), delay=1000)
    await queue.add_item(Item(b"data", id="due"), delay=20)
    await queue.schedules.every(10, "due", "data")
    expired_later = await queue.lease(1000)
    expired, back = await queue.lease_many(2, 20)
    assert expired_later is not None
    await queue.release(back, front=False)
    clock.now += 30
    return [expired_later, expired, back]


async def spoil(redis: Redis, key: str, kind: str) -> None:
    """Replace a key by one of another type."""
    await redis.delete(key)
    if kind == "list":
        await redis.set(key, "something else")
    else:
        await redis.rpush(key, "something", "else")


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_queue_key_of_another_type_raises_wrong_key_type(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock, operation: str
) -> None:
    refused = set()
    for number, (key, kind) in enumerate(KEYS.items()):
        queue = make_queue(name=f"{name}-{number}", clock=clock)
        leases = await fill(queue, clock)
        if kind == "number":
            await redis.set(f"{queue.name}:{key.strip()}", "many")
        else:
            await spoil(redis, f"{queue.name}:{key}", kind)
        before = await snapshot(redis)
        try:
            await OPERATIONS[operation](queue, leases)
        except WrongKeyType as error:
            assert "choose another name" in str(error)  # noqa: PT017 - some keys are not needed
            refused.add(key)
            assert await snapshot(redis) == before, key
        await queue.close()
        await forget(redis, queue)
    assert refused or operation == "add_item again", "no call needed the key"


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_inbox_of_another_type_loses_no_item(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock, operation: str
) -> None:
    """Other programs have no reason to use these names; if one does, no item is lost."""
    for whose in ("own", "dead"):
        queue = make_queue(name=f"{name}-{whose}", clock=clock)
        leases = await fill(queue, clock)
        session = queue.session if whose == "own" else "lh:dead"
        await redis.zadd(f"{queue.name}:sessions", {session: 1})
        await redis.set(f"{queue.name}:inbox:{session}", "something else")
        with contextlib.suppress(WrongKeyType):
            await OPERATIONS[operation](queue, leases)
        await redis.delete(f"{queue.name}:inbox:{session}")
        await audit(redis, queue.name)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_an_item_key_of_another_type_affects_no_other_item(
    make_queue: MakeQueue, redis: Redis, name: str, clock: Clock, operation: str
) -> None:
    """Other items are not affected, or nothing was applied; none is lost or in two states."""
    for kind in ("item", "lease", "leased_by_session"):
        for item_id in ("leased", "expired", "back", "waits", "due"):
            queue = make_queue(name=f"{name}-{kind}-{item_id}", clock=clock)
            leases = await fill(queue, clock)
            key = f"{queue.name}:{kind}:{item_id}"
            await spoil(redis, key, "counter")
            with contextlib.suppress(WrongKeyType):
                await OPERATIONS[operation](queue, leases)
            if kind != "item":
                await redis.delete(key)
            await audit(redis, queue.name)
            await queue.close()
            await forget(redis, queue)


async def test_an_item_in_the_inbox_is_not_lost_when_the_next_key_has_another_type(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id="ours"), Item(b"x", id="spoiled")])
    await redis.zadd(f"{name}:sessions", {queue.session: 9e15})
    await redis.lmove(f"{name}:queue", f"{name}:inbox:{queue.session}", "RIGHT", "LEFT")
    await redis.rpush(f"{name}:lease:spoiled", "something", "else")
    with contextlib.suppress(WrongKeyType):
        await queue.lease_many(5, 30, block=False)
    await redis.delete(f"{name}:lease:spoiled")
    found = await audit(redis, name)
    assert found.all.keys() == {b"ours", b"spoiled"}


async def test_the_other_items_are_leased_and_completed(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(10)])
    await spoil(redis, f"{queue.name}:item:5", "counter")
    leases = await queue.lease_many(10, 30, block=False)
    assert [lease.id for lease in leases] == [f"{n}" for n in range(10) if n != 5]
    with pytest.raises(WrongKeyType):
        await queue.lease_many(10, 30, block=False)
    with pytest.raises(WrongKeyType):
        await queue.lease(30, timeout=30)
    await redis.delete(f"{queue.name}:item:5")
    assert await queue.complete_many(leases) == [True] * 9
    assert await queue.lease(30, block=False) is None
    await audit(redis, queue.name)


async def forget(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Remove the keys of a queue, so that the next check is quick."""
    await redis.delete(*await redis.keys(glob(queue.name) + b":*"))
