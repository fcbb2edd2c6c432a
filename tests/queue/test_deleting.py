"""Emptying and deleting a queue: what goes, what stays, who is notified, and what a second call finishes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.errors import JobCancelled, QueueDeleted
from leasequeue.queue.queue import engine_of
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import Held, blocked, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import Clock, MakeQueue

pytestmark = pytest.mark.core


async def furnish(queue: AsyncWorkQueue) -> None:
    """Give a queue items in each state, and keys of each kind."""
    await queue.events.keep(count=1000)
    await queue.history.keep()
    await queue.add_items([Item(b"x", id=f"leased-{n}") for n in range(3)])
    await queue.lease_many(3, 30)
    await queue.add_item(Item(b"x", id="dead"))
    await queue.fail(await take(queue), "an error")
    await queue.add_item(Item(b"x", id="done"))
    await queue.complete(await take(queue), result=b"result")
    await queue.add_item(Item(b"x", id="retried"))
    await queue.fail(await take(queue), "an error", retry_in=100)
    await queue.add_items([Item(b"x", id=f"waiting-{n}") for n in range(600)])
    await queue.add_item(Item(b"x", id="late"), at=datetime(2100, 1, 1, tzinfo=UTC))
    await queue.schedules.every(100, "poll", data=b"x")
    await engine_of(queue).bulk.run("once_run", job=b"job", run=b"run", keep_ms=100_000)
    await engine_of(queue).bulk.add_once(b"run", [b"bulk", b"x", b"0", b"0"])


async def keys_of(redis: Redis, name: str) -> set[str]:
    return {key.decode().removeprefix(f"{name}:") async for key in redis.scan_iter(f"{name}:*")}


@pytest.mark.seed("WRQ-O21", "WRQ-B7")
async def test_a_deleted_queue_leaves_one_key_and_its_name_can_be_used_anew(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    near = make_queue(name=f"{name}:near")
    await near.add_item(Item(b"x", id="near"))
    await furnish(queue)
    held = (await queue.inspect("leased"))[0]
    assert await queue.admin.delete() == 606
    assert await keys_of(redis, name) == {"fence", "near:queue", "near:item:near"}
    assert await queue.counts() == (0, 0, 0, 0)
    assert await queue.dead_letters.get("dead") is None
    assert await queue.results.get("done") is None
    assert await queue.add_item(Item(b"new", id="leased-0"))
    lease = await take(queue)
    assert held.token is not None
    assert (lease.data, lease.attempt) == (b"new", 1)
    assert lease.token > held.token
    assert (await near.counts()).waiting == 1


async def test_holders_of_a_deleted_queue_can_do_nothing_and_are_told(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=one) for one in ("a", "b", "c d")])
    leases = await queue.lease_many(3, 30)
    async with redis.pubsub() as pushes:
        await pushes.subscribe(f"{name}:push:{queue.session}")
        assert (await pushes.get_message(timeout=120) or {})["type"] == "subscribe"
        assert await queue.admin.delete() == 3
        pushed = {(await pushes.get_message(timeout=120) or {})["data"] for _ in leases}
    assert pushed == {f"cancel {lease.token} {lease.id}".encode() for lease in leases}
    first, second, third = leases
    assert not await queue.complete(first)
    assert not await queue.renew(second, 30)
    assert not await queue.fail(third, "late", retry_in=0)
    assert not await queue.release(third)
    assert await queue.add_items([Item(b"new", id=lease.id) for lease in leases]) == [True] * 3
    assert await queue.complete_many(leases) == [False] * 3
    assert (await audit(redis, name)).waiting == [b"a", b"b", b"c d"]


async def interrupt(queue: AsyncWorkQueue) -> None:
    """Delete a queue up to its first step."""
    await engine_of(queue).bulk.run("close_queue", count=1)


@pytest.mark.seed("WRQ-O21")
async def test_while_a_queue_is_being_deleted_nothing_is_added_or_leased(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await furnish(queue)
    leases = await queue.lease_many(2, 30)
    await interrupt(queue)
    adding = [
        queue.add_item(Item(b"x")),
        queue.add_unique_item(Item(b"x")),
        queue.add_items([Item(b"x")]),
        queue.add_item(Item(b"x"), delay=5),
        queue.dead_letters.requeue("dead"),
        engine_of(queue).bulk.add_once(b"run", [b"other", b"x", b"0", b"0"]),
    ]
    for one in adding:
        with pytest.raises(QueueDeleted, match=f"{name} is being deleted.*leasequeue rm"):
            await one
    assert (await queue.counts()).waiting == 0
    assert await queue.lease(30, block=False) is None
    assert await queue.admin.recover(10, 0, 30) == []
    assert await queue.schedules.tick() > 0
    await queue.release_many(leases)
    assert await queue.lease(30, timeout=0.05) is None
    await queue.deep_clean()
    assert (await queue.counts()).waiting <= 2  # what was released
    assert await queue.admin.delete() > 0
    assert await keys_of(redis, name) <= {"fence", "sessions"}  # it waited just now


@pytest.mark.seed("WRQ-O21")
async def test_a_caller_that_waits_gets_what_is_added_after_the_deletion(
    make_queue: MakeQueue, redis: Redis
) -> None:
    waiter, other = make_queue(), make_queue()
    waiting = asyncio.create_task(waiter.lease(30, timeout=120))
    await blocked(redis, 1)
    await other.admin.delete()
    await other.add_item(Item(b"x", id="x"))
    lease = await waiting
    assert lease is not None
    assert lease.id == "x"


async def test_a_clean_tells_of_a_deletion_that_was_interrupted_and_repairs_nothing(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=f"i{n}") for n in range(9)], priority=1)
    await queue.add_item(Item(b"x"), delay=600)
    await queue.lease_many(3, 30)
    await interrupt(queue)
    before = await keys_of(redis, name)
    assert {"control", "item:i8", "scheduled"} < before
    for check in (queue.light_clean, queue.deep_clean, queue.admin.fsck):
        [finding] = (await check()).findings
        assert (finding.problem, finding.is_repaired) == ("unfinished_deletion", False)
    assert await keys_of(redis, name) == before
    await queue.admin.delete()
    assert (await queue.admin.fsck()).findings == ()


async def test_what_foreign_clients_add_meanwhile_is_removed(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_item(Item(b"x"))
    await interrupt(queue)
    for number in range(600):
        await redis.set(f"{name}:item:{number}", "foreign")
        await redis.lpush(f"{name}:queue", f"{number}")
    await redis.rpoplpush(f"{name}:queue", f"{name}:processing")
    await redis.set(f"{name}:lease:0", "another", ex=60)
    assert await queue.admin.delete() == 601
    assert await keys_of(redis, name) == set()


@pytest.mark.seed("WRQ-E4")
async def test_each_item_of_a_deleted_or_purged_queue_has_an_event(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_items([Item(b"x", id=one) for one in "abc"])
    await queue.add_item(Item(b"x", id="d"), delay=100)
    await queue.admin.purge(scheduled=True)
    found = [event async for event in queue.events(follow=False)][-5:]
    assert [(event.what, event.id, event.reason, event.count) for event in found] == [
        *(("discarded", one, "purged", None) for one in "abcd"),
        ("purged", "", None, 4),
    ]
    await queue.add_items([Item(b"x", id=one) for one in "ab"])
    await queue.lease(30)
    await interrupt(queue)
    found = [event async for event in queue.events(follow=False)][-2:]
    assert [(event.what, event.id, event.reason, event.count) for event in found] == [
        ("deleted", "", None, 2),
        ("discarded", "a", "deleted", None),
    ]
    await queue.admin.delete()
    assert not await left_over(redis, name) - {"fence"}


@pytest.mark.seed("WRQ-O21")
async def test_purging_removes_what_waits_and_keeps_what_is_leased(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await furnish(queue)
    await queue.events.stop()
    assert await queue.admin.purge() == 601
    assert await queue.counts() == (0, 3, 2, 1)
    assert await queue.admin.purge(scheduled=True) == 2
    assert await queue.counts() == (0, 3, 0, 1)
    assert await queue.admin.purge(scheduled=True, dead=True) == 1
    assert await queue.counts() == (0, 3, 0, 0)
    leases = await queue.inspect("leased")
    assert {view.id for view in leases} == {"leased-0", "leased-1", "leased-2"}
    assert set(await redis.hkeys(f"{name}:ledger")) == {b"leased-0", b"leased-1", b"leased-2"}
    assert await queue.add_item(Item(b"x", id="waiting-0"))
    assert (await take(queue)).attempt == 1
    assert not {key for key in await keys_of(redis, name) if key.startswith(("item:retried", "errors"))}


async def test_purging_leaves_what_is_only_listed_where_it_is(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x", id=one) for one in ("leased", "foreign", "waiting")])
    lease = await take(queue)
    await queue.add_item(Item(b"x", id="later"), delay=100)
    await redis.set(f"{name}:lease:foreign", "another", ex=60)
    await redis.rpush(f"{name}:queue", "leased", "later", "ghost")
    assert await queue.admin.purge() == 1
    assert await redis.lrange(f"{name}:queue", 0, -1) == []
    assert await queue.counts() == (0, 2, 1, 0)  # the foreign lease is watched
    assert await queue.complete(lease)


async def test_purging_reaches_what_would_wake_a_process_that_waits(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock
) -> None:
    await queue.add_items([Item(b"x", id=f"{n}") for n in range(3)], priority=-1)
    # It waits, and leases nothing.
    await redis.zadd(f"{name}:sessions", {"lh:asleep": (clock.now + 60) * 1000})
    assert await queue.admin.purge() == 3
    assert await queue.lease(30, block=False) is None


async def test_purging_ends_though_items_are_added(queue: AsyncWorkQueue, make_queue: MakeQueue) -> None:
    await queue.add_items([Item(b"x") for _ in range(2000)])
    adder = make_queue()
    stop = asyncio.Event()

    async def add() -> None:
        while not stop.is_set():
            await adder.add_items([Item(b"x") for _ in range(500)])

    adding = asyncio.create_task(add())
    assert await queue.admin.purge() >= 2000
    stop.set()
    await adding


@pytest.mark.parametrize("how", ["purge", "delete", "delete a leased one"])
async def test_a_waiter_of_a_removed_item_is_told(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis, how: str
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    if how == "delete a leased one":
        await take(queue)
    waiting = asyncio.create_task(make_queue().results.wait("a", timeout=60))

    async def waits() -> bool:
        return bool(await redis.exists(f"{queue.name}:watchers"))

    await until("the waiter is noted", waits)
    assert await (queue.admin.purge() if how == "purge" else queue.admin.delete()) == 1
    with pytest.raises(JobCancelled, match="'a'"):
        await waiting


async def test_a_waiter_is_notified_though_an_older_reply_comes_later(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the item is unfinished, on another connection."""
    await queue.add_item(Item(b"x", id="a"))
    other = make_queue()
    engine = engine_of(other)
    held = Held(engine, monkeypatch)
    held.sent.set()
    waiting = asyncio.create_task(other.results.wait("a", timeout=LIMIT_SECONDS))
    await held.answered.wait()
    await queue.admin.delete()
    await eventually("the message has come", lambda: b"a" in engine.result_waits._end_of)
    held.taken.set()
    with pytest.raises(JobCancelled, match="'a'"):
        await waiting


async def test_a_waiter_of_an_item_that_was_removed_and_added_again_gets_the_end_of_the_second(
    queue: AsyncWorkQueue, make_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    other = make_queue()
    engine = engine_of(other)
    waiting = asyncio.create_task(other.results.wait("a", timeout=LIMIT_SECONDS))
    await eventually("it is known to be unfinished", lambda: b"a" in engine.result_waits._unfinished)
    held = Held(engine, monkeypatch)
    held.taken.set()
    await queue.admin.delete()
    await eventually("the message has come", lambda: b"a" in engine.result_waits._end_of)
    await queue.add_item(Item(b"x", id="a"))
    held.sent.set()
    await eventually("the item is there again", lambda: b"a" not in engine.result_waits._end_of)
    assert await queue.complete(await take(queue))
    assert await waiting is None


async def test_a_deleted_queue_shares_no_limits_any_more(make_queue: MakeQueue, redis: Redis) -> None:
    one, other = make_queue(name="{shop}:a"), make_queue(name="{shop}:b")
    for queue in (one, other):
        await queue.limits.set(shared="{shop}:api", concurrency=1)
        await queue.add_item(Item(b"x", id="x"))
    await take(one, 3600)
    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        waits = group.create_task(other.lease(30))
        await blocked(redis, 1)
        await one.admin.delete()
        await waits
    assert {key async for key in redis.scan_iter("*api*")} == {
        b"{shop}:api:limits",
        b"{shop}:api:queues",
        b"{shop}:api:running",
    }
    await other.admin.delete()
    assert not await redis.keys("*api*")
