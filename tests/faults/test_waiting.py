"""Waiting is cheap: one item wakes one waiter, and a process waits with one connection.

The figures are counts of what the server was sent, never times.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item, QueueClosed
from leasequeue.queue import leasing
from leasequeue.queue.encoding import TRIP_ROWS
from leasequeue.queue.pushes import listener
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import blocked, take, until
from tests.queue.keyspace import audit, calls, left_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

#: What a waiter sends: scripts and blocking moves.
SENT = ("evalsha", "eval", "blmove")


async def done(waiting: Sequence[asyncio.Task[Lease]], count: int) -> None:
    """Wait until `count` callers have got an item."""
    await eventually(f"{count} are done", lambda: sum(task.done() for task in waiting) == count)


@pytest.fixture
def no_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiters ask again only when an item arrives, so that all their calls can be counted."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 60)
    monkeypatch.setattr(leasing, "LINGER_SECONDS", 60)


@pytest.mark.parametrize("count", [1, 2, 5, 20, 50])
@pytest.mark.usefixtures("no_refresh")
@pytest.mark.seed("WRQ-E1", "WRQ-B11")
async def test_one_item_wakes_one_waiter(make_queue: MakeQueue, redis: Redis, name: str, count: int) -> None:
    adder, waiters = make_queue(), [make_queue() for _ in range(count)]
    await adder.add_item(Item(b"warm"))
    assert await adder.complete_many(await adder.lease_many(1, 30)) == [True]
    waiting = [asyncio.create_task(take(waiter, timeout=60)) for waiter in waiters]
    await blocked(redis, count)
    for number in range(min(count, 5)):
        before = await calls(redis, *SENT)
        await adder.add_item(Item(b"x", id=f"{number}"))
        await done(waiting, number + 1)
        # One to add it, which also leases it, and one to acknowledge it.
        assert await calls(redis, *SENT) - before <= 3
        assert await calls(redis, "evalsha") - before <= 2
    rest = [Item(b"x", id=f"{number}") for number in range(5, count)]
    await adder.add_items(rest)
    leases = await asyncio.gather(*waiting)
    assert sorted(int(lease.id) for lease in leases) == list(range(count))
    await audit(redis, name)


@pytest.mark.usefixtures("no_refresh")
async def test_the_coroutines_of_a_process_wait_with_one_connection(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    adder, waiter = make_queue(), make_queue()
    waiting = [asyncio.create_task(take(waiter, timeout=60)) for _ in range(200)]
    await blocked(redis, 1)
    connections = {client["id"] for client in await redis.client_list()}
    before = await calls(redis, *SENT)
    await adder.add_items([Item(b"x", id=f"{number}") for number in range(200)])
    leases = await asyncio.gather(*waiting)
    assert len({lease.id for lease in leases}) == 200
    # One to add them, one or two to lease them, and blocking moves.
    assert await calls(redis, *SENT) - before <= 6
    assert len({client["id"] for client in await redis.client_list()} - connections) <= 1  # the adder's
    await audit(redis, name)


async def test_concurrent_calls_share_trips(queue: AsyncWorkQueue, redis: Redis) -> None:
    count = 4_000
    await queue.counts()
    before = await calls(redis, "evalsha")
    added = await asyncio.gather(*(queue.add_item(Item(b"x", id=f"{n}")) for n in range(count)))
    assert all(added)
    # One for the first call, which waits for no other; full trips; small ones for the last calls.
    assert await calls(redis, "evalsha") - before <= 1 + math.ceil(count / TRIP_ROWS) + 2

    before = await calls(redis, "evalsha")
    leases: list[Lease | None] = await asyncio.gather(*(queue.lease(60) for _ in range(count)))
    held = [lease for lease in leases if lease]
    assert sorted(int(lease.id) for lease in held) == list(range(count))
    assert await calls(redis, "evalsha") - before <= 1 + math.ceil(count / 250) + 2

    for call in (lambda lease: queue.renew(lease, 60), queue.complete):
        before = await calls(redis, "evalsha")
        assert all(await asyncio.gather(*(call(lease) for lease in held)))
        assert await calls(redis, "evalsha") - before <= 1 + math.ceil(count / TRIP_ROWS) + 2


@pytest.mark.seed("WRQ-B13")
async def test_a_lone_call_is_one_trip(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"warm"))
    warm = await take(queue)
    for call in (queue.renew(warm, 30), queue.release(warm), queue.counts(), queue.add_item(Item(b"x"))):
        before = await calls(redis, *SENT)
        await call
        assert await calls(redis, *SENT) - before <= 2  # `eval` after the first use of a script


@pytest.mark.seed("WRQ-G7")
async def test_an_idle_waiter_sends_less_than_a_command_a_second(
    make_queue: MakeQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends some commands each time that a blocking move has ended without an item."""
    seconds = listener.BLOCK_SECONDS
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 1)
    waiter = make_queue(url=proxy.url)
    waiting = [asyncio.create_task(waiter.lease(30)) for _ in range(10)]
    await eventually("it waits", lambda: b"BLMOVE" in proxy.commands)
    before, moves = len(proxy.commands), proxy.commands.count(b"BLMOVE")
    await eventually("two moves have ended", lambda: proxy.commands.count(b"BLMOVE") >= moves + 2, within=120)
    assert len(proxy.commands) - before < 2 * seconds
    await waiter.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(end) for end in ends} == {QueueClosed}


@pytest.mark.usefixtures("no_refresh")
async def test_a_caller_that_joins_waiting_ones_sends_nothing(
    queue: AsyncWorkQueue, make_queue: MakeQueue, redis: Redis
) -> None:
    """The queue was empty, and the blocked connection notices what comes after that."""
    waiting = [asyncio.create_task(take(queue, timeout=60))]
    await blocked(redis, 1)
    before = await calls(redis, *SENT)
    for _ in range(20):
        waiting.append(asyncio.create_task(take(queue, timeout=60)))
        assert await queue.lease(30, timeout=0.001) is None
    assert await calls(redis, *SENT) == before
    await make_queue().add_items([Item(b"x") for _ in waiting])
    assert len({lease.id for lease in await asyncio.gather(*waiting)}) == 21


@pytest.mark.usefixtures("no_refresh")
async def test_a_waiter_asks_again_when_a_lease_expires_and_not_before(
    make_queue: MakeQueue, redis: Redis
) -> None:
    worker, waiter = make_queue(), make_queue()
    await worker.add_item(Item(b"x"))
    await take(worker, 1.0)
    before = await calls(redis, "evalsha")
    lease = await take(waiter)
    assert lease.attempt == 2
    assert await calls(redis, "evalsha") - before <= 4  # to find nothing, to ask on the dot, and a spare


async def test_an_item_leased_for_a_cancelled_waiter_goes_to_another_at_once(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    adder, first, second = make_queue(), make_queue(), make_queue()
    for number in range(20):
        waiting = asyncio.create_task(first.lease(30))
        await blocked(redis, 1)
        other = asyncio.create_task(second.lease(30))
        await blocked(redis, 2)
        await adder.add_item(Item(b"x", id=f"{number}"))  # moves into the inbox of the first
        waiting.cancel()
        async with asyncio.timeout(120):
            done, _ = await asyncio.wait([waiting, other], return_when=asyncio.FIRST_COMPLETED)
            if waiting in done and waiting.cancelled():
                lease = await other
            else:  # it had been served already
                lease = await waiting
                other.cancel()
                await asyncio.wait([other])
        assert lease is not None
        assert lease.id == f"{number}"
        assert await adder.complete(lease)
    for queue in (adder, first, second):
        await queue.close()
    assert not await left_over(redis, name)


async def test_an_item_that_arrives_after_the_last_waiter_left_is_released(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    """The connection listens for a moment after the last waiter has left."""
    adder, gone, other = make_queue(), make_queue(), make_queue()
    waiting = asyncio.create_task(gone.lease(30))
    await blocked(redis, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    await adder.add_item(Item(b"x", id="x"))
    async with asyncio.timeout(120):
        await take(other)
    for queue in (adder, gone, other):
        await queue.close()
    assert not {key for key in await left_over(redis, name) if b"inbox" in key or b"sessions" in key}
    assert (await audit(redis, name)).leased == [b"x"]


async def test_waiters_that_time_out_lose_no_item(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timeouts of all lengths around the moment at which a process stops listening."""
    monkeypatch.setattr(leasing, "LINGER_SECONDS", 0.005)
    adder, waiters = make_queue(), [make_queue() for _ in range(3)]
    total, got = 300, set[str]()

    async def wait_in_bits(waiter: AsyncWorkQueue, number: int) -> None:
        while len(got) < total:
            timeout = 0.001 * (1 + number % 12)
            number += 5
            if lease := await waiter.lease(30, timeout=timeout):
                assert lease.id not in got
                got.add(lease.id)
                assert await waiter.complete(lease)

    async def add() -> None:
        for number in range(total):
            await adder.add_item(Item(b"x", id=f"{number}"))
            await asyncio.sleep(0.001 * (number % 9))

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        group.create_task(add())
        for number, waiter in enumerate(waiters * 2):
            group.create_task(wait_in_bits(waiter, number))
    for queue in (adder, *waiters):
        await queue.close()
    assert not await left_over(redis, name)


async def test_a_waiter_gets_the_item_in_the_inbox_of_a_dead_process(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leases nothing while its blocking moves end without an item, until a session has expired."""
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 0.2)
    waiter, adder = make_queue(), make_queue()
    waiting = asyncio.create_task(take(waiter))
    await blocked(redis, 1)
    dead = f"{name}:inbox:lh:dead"
    async with redis.pipeline(transaction=True) as pipe:
        adder.add_item_to_pipeline(pipe, Item(b"x", id="x"))
        pipe.lmove(f"{name}:queue", dead, "RIGHT", "LEFT")
        pipe.zadd(f"{name}:sessions", {"lh:dead": 1})
        await pipe.execute()
    assert (await waiting).id == "x"
    assert await redis.exists(dead) == 0


@pytest.mark.parametrize("end", ["timeout", "cancel", "close"])
async def test_waiters_that_leave_leave_no_keys(
    make_queue: MakeQueue, redis: Redis, name: str, end: str
) -> None:
    waiters = [make_queue() for _ in range(5)]
    timeout = 0.1 if end == "timeout" else 60
    waiting = [asyncio.create_task(waiter.lease(30, timeout=timeout)) for waiter in waiters for _ in range(3)]
    if end != "timeout":
        await blocked(redis, 5)
    if end == "cancel":
        for task in waiting:
            task.cancel()
    if end != "close":
        await asyncio.wait(waiting)
    for waiter in waiters:
        await waiter.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not await left_over(redis, name)
    await blocked(redis, 0)


@pytest.mark.parametrize("group", [None, "g"])
async def test_of_many_sessions_few_make_a_blocking_move_and_all_get_items(
    make_queue: MakeQueue, redis: Redis, name: str, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """Of any client, one by one or many at once, in the queue or in a lane; no timer helps."""
    count = 60
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 0.3)
    monkeypatch.setattr(listener, "MARGIN_SECONDS", 3600)  # so that no move counts as lost
    monkeypatch.setattr(listener, "KEEP_MS", 3_600_000)
    adder, waiters = make_queue(), [make_queue() for _ in range(count)]
    waiting = [asyncio.create_task(take(waiter, timeout=LIMIT_SECONDS)) for waiter in waiters]

    async def registrations() -> set[bytes]:
        return {*await redis.zrange(f"{name}:idle", 0, -1)}

    def sessions(members: set[bytes]) -> int:
        return len({member.partition(b"@")[2] for member in members})

    async def few_move(fewer_than: int = count // 3) -> bool:
        blocked_now = (await redis.info("clients"))["blocked_clients"]
        return sessions(await registrations()) == count and 1 <= blocked_now < fewer_than

    await until("few are blocked", few_move)
    # Counted where a wait begins: that of a session which is registered already may begin only now.
    long_waits: list[float] = []

    def wait_for_long() -> float:
        long_waits.append(3600.0)
        return 3600.0

    monkeypatch.setattr(listener, "_wait_seconds", wait_for_long)

    async def all_wait_for_long() -> bool:
        # Those that made a move make one more, and some eight others are chosen.
        return len(long_waits) >= count and await few_move(2 * count // 3)

    await until("all have registered again", all_wait_for_long)
    await redis.set(f"{name}:item:foreign", b"x")
    await redis.lpush(f"{name}:queue", "foreign")
    await done(waiting, 1)
    for number in range(10):
        await adder.add_item(Item(b"x", id=f"one {number}"))
        await done(waiting, number + 2)
    await adder.add_items([Item(b"x", id=f"many {number}") for number in range(count - 11)], group=group)
    leases = await asyncio.gather(*waiting)
    assert len({lease.id for lease in leases}) == count
    # Each is leased once, but those that were delivered to a session that had just ceased to wait.
    assert max(lease.token for lease in leases if lease.id.startswith("one ")) <= 16
    await audit(redis, name)
