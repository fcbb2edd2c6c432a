"""Items that are leased at the moment of a stop are released."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from leasehold import Item, Worker

if TYPE_CHECKING:
    from leasehold import Lease
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
    queue, lease_many = opened[0], opened[0].lease_many
    leased = asyncio.Event()

    async def lease_and_cancel(*args: Any, **kwargs: Any) -> list[Lease]:
        leases: list[Lease] = await lease_many(*args, **kwargs)
        if leases:
            for task in asyncio.all_tasks():
                if task.get_name().startswith("leasehold fetch "):
                    # After this call has the leases, and before the task that awaits it runs again.
                    asyncio.get_running_loop().call_soon(task.cancel)
            leased.set()
        return leases

    monkeypatch.setattr(queue, "lease_many", lease_and_cancel)
    await queue.add_items([Item("one"), Item("two")])
    await worker.run()
    assert leased.is_set()
    counts = await queue.counts()
    assert counts.leased == 0
    assert counts.waiting + len(ran) == 2
    if queues == 2:  # then the call is awaited while no slot is claimed, and nothing starts
        assert ran == []
        assert [(view.data, view.attempt) for view in await queue.inspect()] == [(b"one", 0), (b"two", 0)]
