"""Operations on whole queues, on a queue that clients of other libraries use."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.interop.foreign import Foreign

pytestmark = [pytest.mark.core, pytest.mark.slow]


async def test_purging_leaves_what_a_foreign_client_holds(queue: AsyncWorkQueue, foreign: Foreign) -> None:
    for item_id in ("held", "a", "b"):
        await foreign.add(item_id, b"data")
    await queue.add_item(Item(b"ours", id="ours"))
    assert await foreign.lease(60) == ("held", b"data")
    assert await queue.admin.purge() == 3
    assert await foreign.queue_len() == 0
    assert await foreign.complete("held")
    await queue.light_clean()
    assert await queue.counts() == (0, 0, 0, 0)
    await foreign.add("a", b"again")
    lease = await queue.lease(30, block=False)
    assert lease is not None
    assert (lease.id, lease.data) == ("a", b"again")


async def test_items_of_a_foreign_client_move_and_are_worked_on_by_another(
    queue: AsyncWorkQueue, foreign: Foreign, redis: Redis
) -> None:
    for item_id in ("held", "a", "b"):
        await foreign.add(item_id, item_id.encode())
    assert await foreign.lease(60) == ("held", b"held")
    async with AsyncWorkQueue(f"{queue.name}-other", redis) as other:
        assert await queue.admin.move(other) == ["a", "b"]
        assert await foreign.lease(60) is None
        assert await foreign.complete("held")
        assert [lease.data for lease in await other.lease_many(9, 30)] == [b"a", b"b"]
        # And back, to the foreign client.
        assert len(await other.admin.clear_leases()) == 2
        assert await other.admin.move(queue) == ["a", "b"]
    assert await foreign.lease(60) == ("a", b"a")
    assert await foreign.lease(60) == ("b", b"b")
    assert await foreign.complete("a")
    assert await foreign.complete("b")


async def test_a_foreign_client_works_while_items_are_moved_to_and_fro(
    queue: AsyncWorkQueue, foreign: Foreign, redis: Redis
) -> None:
    ids = {f"{number}" for number in range(60)}
    for item_id in sorted(ids, key=int):
        await foreign.add(item_id, b"data")
    done: list[str] = []
    async with AsyncWorkQueue(f"{queue.name}-other", redis) as other:

        async def move() -> None:
            for _ in range(10):
                await queue.admin.move(other, count=30)
                await other.admin.move(queue)
            await other.admin.move(queue)

        moving = asyncio.create_task(move())
        while len(done) < len(ids):
            if item := await foreign.lease(60, timeout=0.5):
                if item.data and await foreign.complete(item.id):
                    done.append(item.id)
            elif moving.done():
                # What the foreign client has taken at the moment of a move is only listed as taken.
                await queue.deep_clean()
        await moving
        assert await other.counts() == (0, 0, 0, 0)
    assert len(done) == len(ids)
    assert {*done} == ids


async def test_a_foreign_worker_gets_nothing_of_a_deleted_queue_and_can_use_its_name_anew(
    queue: AsyncWorkQueue, foreign: Foreign, redis: Redis, name: str
) -> None:
    for item_id in ("held", "a", "b"):
        await foreign.add(item_id, b"data")
    assert await foreign.lease(60) == ("held", b"data")
    assert await queue.admin.delete() == 3
    assert await foreign.lease(60) is None
    await foreign.light_clean()
    assert await foreign.queue_len() == await foreign.processing() == 0
    assert not [key async for key in redis.scan_iter(f"{name}:item:*")]
    await foreign.add("a", b"again")
    assert await foreign.lease(60) == ("a", b"again")


@pytest.mark.seed("RWQ-O20")
async def test_clearing_leases_returns_what_a_foreign_client_holds(
    queue: AsyncWorkQueue, foreign: Foreign
) -> None:
    for item_id in ("a", "b", "c"):
        await foreign.add(item_id, b"data")
    assert await foreign.lease(60) == ("a", b"data")
    assert (await queue.lease(60)) is not None
    assert sorted(await queue.admin.clear_leases()) == ["a", "b"]
    assert await foreign.queue_len() == 3
    assert sorted([(await foreign.lease(60) or ("", b""))[0] for _ in range(3)]) == ["a", "b", "c"]
