"""One worker of many queues: what it costs, and what it leaves to others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from leasequeue.queue.lease import Lease  # noqa: TC001 - the worker reads annotations
from tests.eventually import eventually
from tests.queue.asking import blocked
from tests.queue.keyspace import calls
from tests.worker.working import Gate, finished, new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Queues:
    """Queue objects on one client."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._opened: list[AsyncWorkQueue] = []
        self._clients: list[Redis] = []

    def __call__(self, count: int) -> list[AsyncWorkQueue]:
        """Open so many queues on a new client; the same queues each time."""
        client = Redis.from_url(self._url)
        self._clients.append(client)
        opened = [AsyncWorkQueue(f"{self._name}-{number}", client) for number in range(count)]
        self._opened += opened
        return opened

    async def close(self) -> None:
        await asyncio.gather(*(queue.close() for queue in self._opened))
        await asyncio.gather(*(client.aclose() for client in self._clients))


@pytest.fixture
async def queues(redis_url: str, name: str) -> AsyncIterator[Queues]:
    """Return a function that opens queues."""
    found = Queues(redis_url, name)
    yield found
    await found.close()


@pytest.mark.seed("GLD-B9")
@pytest.mark.parametrize("order", ["weighted", "strict"])
async def test_items_of_many_queues_that_a_busy_worker_watches_go_to_an_idle_one(
    queues: Queues, redis: Redis, order: str
) -> None:
    """Each item arrives at the busy worker first, which has waited longer, and is released."""
    count = 8
    busy, idle = new_worker(concurrency=1, order=order), new_worker(concurrency=1, order=order)
    ours, theirs = queues(count), queues(count)
    gate = Gate(busy, ours[0])
    never, ran = list[bytes](), list[tuple[str, int]]()
    for queue in ours[1:]:
        busy.handler(queue)(never.append)

    async def handle(_: bytes, lease: Lease) -> None:
        ran.append((lease.id, lease.attempt))

    for queue in theirs:
        idle.handler(queue)(handle)
    async with working(busy):
        await blocked(redis, count)
        await ours[0].add_item(Item(b"x"))
        await gate.reached(1)
        async with working(idle):
            await blocked(redis, count - 1 + count)
            for queue in theirs[1:]:
                await queue.add_item(Item(b"x", id=queue.name))
            await eventually("the idle worker has run all", lambda: len(ran) == count - 1)
        gate.opened.set()
        await finished(ours[0])
    assert never == []
    assert sorted(ran) == sorted((queue.name, 1) for queue in theirs[1:]), "this was no attempt"


async def test_a_queue_whose_item_was_returned_is_asked_when_a_slot_is_free(
    queues: Queues, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "leasequeue.queue.pushes.listener.BLOCK_SECONDS", 1
    )  # for how long it listens on the first
    worker = new_worker(concurrency=1)
    first, second = queues(2)
    gates = Gate(worker, first), Gate(worker, second)
    async with working(worker):
        await blocked(redis, 2)
        await first.add_item(Item(b"x"))
        await gates[0].reached(1)
        await second.add_items([Item(b"x", id="a"), Item(b"x", id="b")])
        await blocked(redis, 0)
        assert (await second.counts()).waiting == 2
        gates[1].opened.set()
        gates[0].opened.set()
        await finished(second)
    assert gates[1].done == ["a", "b"]


async def test_a_queue_with_work_costs_no_trips_of_the_others(queues: Queues, redis: Redis) -> None:
    """One, and 40 of which one has work: about as many scripts, and the others are waited on all the time."""
    sent = []
    for count in (1, 40):
        opened = queues(count)
        worker = new_worker(concurrency=10)
        for queue in opened:
            worker.handler(queue)(lambda _: None)
        async with working(worker):
            await blocked(redis, count)
            before = await calls(redis, "evalsha", "eval", "blmove")
            for _ in range(10):
                await opened[-1].add_items([Item(b"x") for _ in range(50)])
                await finished(opened[-1])
                await blocked(redis, count)
            sent.append(await calls(redis, "evalsha", "eval", "blmove") - before)
    assert sent[1] < 3 * sent[0], "not 40 times"


async def test_many_queues_start_work_and_stop(queues: Queues, redis: Redis) -> None:
    """With one connection for each, and a few more."""
    count = 60
    opened = queues(count)
    worker, ran = new_worker(concurrency=20, clean_every=60), set[str]()

    async def handle(_: bytes, lease: Lease) -> None:
        ran.add(lease.id)

    for queue in opened:
        worker.handler(queue)(handle)
    before = len(await redis.client_list())
    async with working(worker):
        await blocked(redis, count)
        await asyncio.gather(*(queue.add_item(Item(b"x", id=queue.name)) for queue in opened))
        await eventually("all were run", lambda: len(ran) == count)
        # Commands and pushes of this event loop, and commands of the background thread.
        assert len(await redis.client_list()) - before <= count + 3
        await asyncio.gather(*map(finished, opened))
    await blocked(redis, 0)
    assert not [queue.name for queue in opened if await redis.exists(f"{queue.name}:sessions")]
