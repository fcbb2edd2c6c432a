"""Items that are leased or arrive at the moment of a stop are released."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import Item, Worker
from leasequeue.queue.leasing import LeaseDispatcher
from tests.worker.working import Gate, add, new_worker

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


@pytest.mark.parametrize("queues", [1, 2])
async def test_items_are_released_if_the_fetcher_is_cancelled_before_it_gets_them(
    make_queue: MakeQueue, name: str, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    worker = Worker()
    ran: list[bytes] = []

    async def handle(data: bytes) -> None:
        ran.append(data)

    opened = [make_queue(name=f"{name}-{number}") for number in range(queues)]
    for queue in opened:
        worker.handler(queue)(handle)
    leased = False
    distribute = LeaseDispatcher._distribute

    def distribute_and_cancel(dispatcher: LeaseDispatcher, *args: Any) -> None:
        """Cancel the fetcher after a call has its items, and before the task that awaits it runs again."""
        nonlocal leased
        distribute(dispatcher, *args)
        if args[1][3:]:  # the reply has items
            leased = True
            for task in asyncio.all_tasks():
                if task.get_name() == "leasequeue fetcher" or task.get_name().startswith("leasequeue fetch "):
                    task.cancel()

    monkeypatch.setattr(LeaseDispatcher, "_distribute", distribute_and_cancel)
    await opened[0].add_items([Item("one"), Item("two")])
    await worker.run()
    assert leased
    assert ran == []
    assert (await opened[0].counts()).leased == 0
    found = await opened[0].inspect()
    assert [(view.data, view.attempt) for view in found] == [(b"one", 0), (b"two", 0)]


async def test_a_process_that_ends_also_returns_what_has_just_arrived(
    queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    worker = new_worker(concurrency=1, lease_time=3600)
    gate = Gate(worker, queue)
    await add(queue, b"x", b"x")
    running = asyncio.create_task(worker.run())
    await gate.reached(1)
    # As by a blocked move of its event loop.
    assert await redis.lmove(f"{name}:queue", f"{name}:inbox:{queue.session}", "RIGHT", "LEFT") == b"2"
    assert worker._runtime is not None
    worker._runtime.take_nothing_more()
    # The signal handler's thread calls it, while the event loop may be blocked.
    await asyncio.to_thread(worker._runtime.release_from_any_thread, timeout=20)
    assert await redis.exists(f"{name}:inbox:{queue.session}") == 0
    assert {*await redis.lrange(f"{name}:queue", 0, -1)} == {b"1", b"2"}
    gate.opened.set()
    worker.stop()
    await running
