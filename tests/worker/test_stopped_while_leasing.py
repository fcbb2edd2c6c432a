"""What was leased in the very moment of a stop is given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasehold import Item, Worker

if TYPE_CHECKING:
    import pytest

    from leasehold import AsyncWorkQueue, Lease


async def test_leases_whose_taker_is_cancelled_before_it_has_them(
    queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    ran: list[bytes] = []

    @worker.handler(queue)
    async def handle(data: bytes) -> None:
        ran.append(data)

    lease_many = queue.lease_many
    met = asyncio.Event()

    async def lease_and_cancel(*args: Any, **kwargs: Any) -> list[Lease]:
        leases: list[Lease] = await lease_many(*args, **kwargs)
        if leases:
            feeds = [task for task in asyncio.all_tasks() if task.get_name().startswith("leasehold feed")]
            for feed in feeds:
                # It runs when the leases are there, and before the feed is told of them.
                asyncio.get_running_loop().call_soon(feed.cancel)
            met.set()
        return leases

    monkeypatch.setattr(queue, "lease_many", lease_and_cancel)
    await queue.add_items([Item("one"), Item("two")])
    await worker.run()
    assert met.is_set()
    assert ran == []
    monkeypatch.undo()
    again = queue.twin()
    counts = await again.counts()
    assert (counts.waiting, counts.leased) == (2, 0)
    assert [view.deliveries for view in await again.inspect()] == [0, 0]
    assert [view.data for view in await again.inspect()] == [b"one", b"two"]
    await again.close()
