"""Closing a queue object: waits end, no key is left on the server, nothing more is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item, LeasequeueError, QueueClosed
from tests.eventually import eventually
from tests.queue.asking import alone, blocked, take, until
from tests.queue.keyspace import audit, calls, left_over, snapshot
from tests.queue.test_refused_arguments import ARGUMENTS, call_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from redis.asyncio import Redis

    from leasequeue.testing import Proxy
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core


async def test_calls_after_close_are_refused(
    make_queue: MakeQueue, redis: Redis, proxy: Proxy, name: str
) -> None:
    queue = make_queue(url=proxy.url)
    await queue.add_items([Item(b"1"), Item(b"2")])
    lease = await take(queue)
    await queue.close()
    before, sent = await snapshot(redis), list(proxy.commands)
    for method in ARGUMENTS.keys() - {"events.keep"}:  # all its arguments have defaults, but one is needed
        with pytest.raises(QueueClosed, match="create a new") as caught:
            await call_of(method, queue, lease)
        assert caught.value.name == name, method
    assert proxy.commands == sent
    assert await snapshot(redis) == before
    await alone(redis)


async def test_leases_and_pipelines_after_close_are_refused(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"1"))
    lease = await take(queue)
    await queue.close()
    with pytest.raises(QueueClosed):
        async with lease:
            pass
    pipeline = redis.pipeline()
    with pytest.raises(QueueClosed):
        queue.add_item_to_pipeline(pipeline, Item(b"x"))
    assert len(pipeline) == 0


async def test_closing_twice_and_closing_unused_are_fine(make_queue: MakeQueue, proxy: Proxy) -> None:
    queue = make_queue(url=proxy.url)
    await queue.close()
    await queue.close()
    with pytest.raises(QueueClosed):
        await queue.counts()
    assert proxy.commands == []


@pytest.mark.seed("RRQ-G3")
async def test_leases_survive_close(make_queue: MakeQueue, redis: Redis, name: str) -> None:
    async with make_queue() as queue:
        await queue.add_item(Item(b"1", id="x"))
        await take(queue)
    assert (await audit(redis, name)).leased == [b"x"]


async def test_waiting_callers_get_queue_closed(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    waiting = [asyncio.create_task(queue.lease(30, timeout=60 if n % 2 else None)) for n in range(40)]
    await blocked(redis, 1)
    late = asyncio.create_task(queue.lease(30))
    await asyncio.sleep(0)
    await queue.close()
    for one in (*waiting, late):
        with pytest.raises(QueueClosed):
            await one
    assert not await left_over(redis, name)
    await alone(redis)


async def test_calls_made_before_close_are_sent(queue: AsyncWorkQueue, redis: Redis, name: str) -> None:
    await queue.counts()
    adding = [asyncio.create_task(queue.add_item(Item(b"x"))) for _ in range(1500)]
    await asyncio.sleep(0)
    await queue.close()
    assert all(await asyncio.gather(*adding))
    assert len((await audit(redis, name)).waiting) == 1500
    await alone(redis)


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.seed("WRQ-B15")
async def test_every_call_in_flight_ends(
    make_queue: MakeQueue, redis: Redis, name: str, steps: int, *, warm: bool
) -> None:
    """Each call returns or raises QueueClosed; none waits for ever."""
    helper, queue = make_queue(), make_queue()
    await helper.add_items([Item(b"x") for _ in range(10)])
    leases = await helper.lease_many(3, 30)
    if warm:
        await queue.counts()
    calls = [
        *(queue.counts(), queue.inspect(), queue.add_item(Item(b"x")), queue.lease_many(2, 30, block=False)),
        *(queue.complete(leases[0]), queue.renew(leases[1], 30), queue.release(leases[2])),
        *(queue.light_clean(), queue.deep_clean(), queue.lease_many(1000, 30), queue.lease(30)),
    ]
    tasks = [asyncio.create_task(call) for call in calls]
    for _ in range(steps):
        await asyncio.sleep(0)
    await queue.close()
    _, pending = await asyncio.wait(tasks, timeout=120)
    for task in pending:
        task.cancel()
    assert not pending
    for task in tasks:
        error = task.exception()
        assert error is None or isinstance(error, LeasequeueError), error
    await audit(redis, name)
    await helper.close()
    assert await redis.zcard(f"{name}:sessions") == 0
    await alone(redis)


async def test_a_caller_that_is_about_to_subscribe_gets_queue_closed(
    make_queue: MakeQueue, queue: AsyncWorkQueue
) -> None:
    """Not CancelledError: it was not cancelled."""
    await queue.add_item(Item(b"x", id="x"))
    await queue.events.keep(count=10)
    await queue.events.publish()
    for steps in range(40):
        closed = make_queue()
        calls: list[Coroutine[Any, Any, Any]] = [
            closed.results.wait("x"),
            anext(closed.events()),  # type: ignore[arg-type]  # it is a coroutine
            anext(closed.events(live=True)),  # type: ignore[arg-type]
        ]
        tasks = [asyncio.create_task(call) for call in calls]
        for _ in range(steps):
            await asyncio.sleep(0)
        await closed.close()
        await asyncio.wait(tasks)
        for task in tasks:
            assert not task.cancelled(), steps
            assert isinstance(task.exception(), QueueClosed), steps


async def test_a_clean_that_is_interrupted_by_close_does_not_reconnect(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    await queue.add_items([Item(b"x") for _ in range(20_000)])
    cleaning = asyncio.create_task(queue.deep_clean())
    before = await calls(redis, "scan")

    async def scanning() -> bool:
        return await calls(redis, "scan") > before

    await until("it scans", scanning)
    await queue.close()
    with pytest.raises(LeasequeueError):
        await cleaning
    await alone(redis)
    await redis.delete(f"{name}:queue")


async def test_a_cancelled_caller_that_stops_listening_leaves_that_to_close(
    make_queue: MakeQueue, proxy: Proxy, redis: Redis, name: str
) -> None:
    """As a worker that ends while the server is away: it cancels the task that begins again."""
    queue = make_queue(url=proxy.url)
    waiting = asyncio.create_task(queue.lease(30))
    await blocked(redis, 1)
    waiting.cancel()
    listener = queue._engine().leasing._listener
    proxy.stall()
    stopping = asyncio.create_task(queue._engine().stop_listening())
    await eventually("it is stopping", lambda: listener._leaving is not None)
    stopping.cancel()
    await asyncio.wait([stopping, waiting])
    assert stopping.cancelled()
    proxy.resume()
    await queue.close()
    assert not await left_over(redis, name)
