"""Many waiting callers in one process do not block other calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.leasing import MAX_ITEMS
from tests.eventually import eventually

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


async def test_a_call_without_wait_is_answered_while_a_large_request_waits(queue: AsyncWorkQueue) -> None:
    greedy = asyncio.create_task(queue.lease_many(1000, 30))
    await waiting(queue, 1)
    async with asyncio.timeout(120):
        assert await queue.lease(30, block=False) is None
        assert await queue.lease_many(10, 30, block=False) == []
    await queue.add_item(Item("one"))
    assert [lease.data for lease in await greedy] == [b"one"]


@pytest.mark.parametrize("callers", [MAX_ITEMS - 1, MAX_ITEMS, 2 * MAX_ITEMS + 1])
async def test_a_call_without_wait_is_answered_however_many_wait(queue: AsyncWorkQueue, callers: int) -> None:
    first = [asyncio.create_task(queue.lease(30)) for _ in range(callers)]
    await waiting(queue, callers)
    late = asyncio.create_task(queue.lease(30))
    async with asyncio.timeout(120):
        assert await queue.lease(30, block=False) is None
        await waiting(queue, callers + 1)
        await queue.add_items([Item(str(number)) for number in range(callers)])
        leases = await asyncio.gather(*first)
    # In the order of their calls: the last one still waits.
    assert [lease.data for lease in leases] == [str(number).encode() for number in range(callers)]
    assert not late.done()
    await queue.add_item(Item("last"))
    assert (await late).data == b"last"


async def waiting(queue: AsyncWorkQueue, callers: int) -> None:
    """Wait until `callers` callers have found the queue empty and wait."""
    dispatcher = queue._engine().leasing
    await eventually("they wait", lambda: len(dispatcher._waiting) == callers and not dispatcher._gate.busy)
