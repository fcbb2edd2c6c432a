"""Leasing from several queues with one call: in order, blocking, cancelled, across servers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, ConnectionLost, InvalidArgument, Item, QueueClosed, lease_from
from leasequeue.queue.many_queues import _Arrivals as arrivals
from tests.queue.asking import blocked, until
from tests.queue.keyspace import left_over

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import LeasequeueError
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def fill(queue: AsyncWorkQueue, *ids: str) -> None:
    assert all(await queue.add_items([Item(b"x", id=item_id) for item_id in ids]))


@pytest.fixture
def queues(make_queue: MakeQueue, name: str) -> list[AsyncWorkQueue]:
    return [make_queue(name=f"{name}-{number}") for number in range(3)]


@pytest.mark.seed("RRQ-O2", "RRQ-G2")
async def test_the_first_queue_is_emptied_before_the_next_is_asked(queues: list[AsyncWorkQueue]) -> None:
    first, second, third = queues
    await fill(second, "b1", "b2", "b3")
    await fill(first, "a1", "a2")
    await fill(third, "c1")
    leases = await lease_from(queues, 4, 30)
    assert [(lease.queue.name, lease.id) for lease in leases] == [
        (first.name, "a1"),
        (first.name, "a2"),
        (second.name, "b1"),
        (second.name, "b2"),
    ]
    assert all([await lease.queue.complete(lease) for lease in leases])
    assert [lease.id for lease in await lease_from([third, second], 9, 30)] == ["c1", "b3"]
    assert await lease_from(queues, 9, 30, block=False) == []


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.seed("RRQ-O2", "RRQ-O3")
async def test_an_item_of_any_queue_wakes_the_caller(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, redis: Redis, which: int
) -> None:
    waiting = asyncio.create_task(lease_from(queues, 5, 30, timeout=120))
    await blocked(redis, 3)
    await fill(make_queue(name=queues[which].name), "x")
    [lease] = await waiting
    assert (lease.queue, lease.id) == (queues[which], "x")
    assert lease.queue_name == queues[which].name


@pytest.mark.seed("RRQ-O3")
async def test_an_item_that_is_too_large_to_be_delivered_wakes_the_caller(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, redis: Redis
) -> None:
    waiting = asyncio.create_task(lease_from(queues, 5, 30, timeout=120))
    await blocked(redis, 3)
    await make_queue(name=queues[1].name).add_item(Item(b"x" * 70_000, id="large"))
    [lease] = await waiting
    assert (lease.queue, lease.id) == (queues[1], "large")


@pytest.mark.seed("RRQ-O3")
async def test_a_lease_that_expires_in_any_queue_wakes_the_caller(queues: list[AsyncWorkQueue]) -> None:
    await fill(queues[2], "x")
    [held] = await lease_from(queues, 1, 0.05)
    [again] = await lease_from(queues, 1, 30, timeout=120)
    assert (again.id, again.attempt) == ("x", 2)
    assert again.token > held.token


@pytest.mark.seed("RRQ-O3")
async def test_a_wait_ends_with_its_timeout_and_leaves_nothing(
    queues: list[AsyncWorkQueue], redis: Redis
) -> None:
    assert await lease_from(queues, 9, 30, timeout=0.05) == []
    for queue in queues:
        await queue.close()
        assert not await left_over(redis, queue.name)


async def test_what_arrives_for_a_cancelled_caller_waits_for_the_next(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, redis: Redis
) -> None:
    others = [make_queue(name=queue.name) for queue in queues]
    for number in range(5):
        waiting = asyncio.create_task(lease_from(queues, 5, 30))
        await blocked(redis, 3)
        adding = [asyncio.create_task(fill(queue, f"{number}")) for queue in others]
        await asyncio.sleep(0.001 * number)
        waiting.cancel()
        [given] = await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.gather(*adding)
        leases = [] if isinstance(given, BaseException) else given
        while len(leases) < 3:
            leases += await lease_from(others, 3 - len(leases), 30, timeout=120)
        assert {(lease.queue_name, lease.attempt) for lease in leases} == {(one.name, 1) for one in queues}
        assert all([await lease.queue.complete(lease) for lease in leases])
        await until("nothing waits", lambda: _none_blocked(redis))


async def test_an_item_that_is_delivered_to_a_cancelled_caller_is_released_at_once(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.create_task(lease_from(queues, 5, 30))
    await blocked(redis, 3)
    notify = arrivals.notify

    def cancel_at_once(self: arrivals, error: LeasequeueError | None = None) -> None:
        notify(self, error)
        waiting.cancel()

    monkeypatch.setattr(arrivals, "notify", cancel_at_once)
    other = make_queue(name=queues[1].name)
    await fill(other, "x")
    with pytest.raises(asyncio.CancelledError):
        await waiting
    lease = await other.lease(30, timeout=120)
    assert lease is not None
    assert (lease.id, lease.attempt) == ("x", 1)


async def _none_blocked(redis: Redis) -> bool:
    return bool((await redis.info("clients"))["blocked_clients"] == 0)


async def test_items_that_the_caller_does_not_get_stay_for_others(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, redis: Redis
) -> None:
    waiting = asyncio.create_task(lease_from(queues, 1, 30, timeout=120))
    await blocked(redis, 3)
    adders = [make_queue(name=queue.name) for queue in queues]
    await asyncio.gather(*(fill(adder, "x") for adder in adders))
    [lease] = await waiting
    others = [adder for adder in adders if adder.name != lease.queue.name]
    got = [await adder.lease(30, timeout=120) for adder in others]
    assert [one is not None and one.attempt for one in got] == [1, 1]


async def test_a_server_that_cannot_be_reached_is_an_error_unless_items_were_leased_before(
    queues: list[AsyncWorkQueue], make_queue: MakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    away = make_queue(url="redis://127.0.0.1:1")
    await fill(queues[0], "x")
    [lease] = await lease_from([queues[0], away], 2, 30)
    assert lease.id == "x"
    assert "only 1 of 2 items were leased" in caplog.text
    with pytest.raises(ConnectionLost):
        await lease_from([queues[0], away], 2, 30)


async def test_a_queue_that_is_closed_ends_the_wait(queues: list[AsyncWorkQueue], redis: Redis) -> None:
    waiting = asyncio.create_task(lease_from(queues, 1, 30))
    await blocked(redis, 3)
    await queues[1].close()
    with pytest.raises(QueueClosed, match=queues[1].name):
        await waiting


async def test_what_cannot_be_used_is_refused_before_anything_is_sent(queues: list[AsyncWorkQueue]) -> None:
    await fill(queues[0], "x")
    for wrong in ([], [queues[0], queues[0]], [queues[0].name], queues[0].name, [None]):
        with pytest.raises(InvalidArgument, match="queues"):
            await lease_from(wrong, 1, 30)  # type: ignore[arg-type]  # that is what is tested
    for count in (0, 1001, True):
        with pytest.raises(InvalidArgument, match="count"):
            await lease_from(queues, count, 30)
    with pytest.raises(InvalidArgument, match="lease_time"):
        await lease_from(queues, 1, 0)
    with pytest.raises(InvalidArgument, match=r"timeout=None.*block=False"):
        await lease_from(queues, 1, 30, timeout=0)
    assert await queues[0].counts() == (1, 0, 0, 0)
