"""Foreign clients on a controlled queue: its items are neither lost nor leased twice, whatever they do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from tests.interop.conftest import Shared
    from tests.interop.foreign import Foreign

pytestmark = [pytest.mark.core, pytest.mark.slow]


async def test_foreign_workers_and_cleaners_neither_lose_nor_double_items_of_lanes(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """They add, lease what they see, clean, and complete; they know of no level, group, limit or pause."""
    ours = [f"i{n}" for n in range(30)]
    for n, item_id in enumerate(ours):
        group = f"g{n % 3}" if n % 2 else None
        assert await queue.add_item(Item(b"ours", item_id), priority=n % 4, group=group)
    await queue.limits.set(concurrency=2, group="*")
    for n in range(10):
        await foreign.add(f"f{n}", b"theirs")
    taken = [await foreign.lease(30) for _ in range(3)]
    done = set[str]()
    await foreign.light_clean()
    for _ in range(60):
        for lease in await queue.lease_many(4, 30, block=False):
            assert lease.id not in done
            done.add(lease.id)
            assert await queue.complete(lease)
        await foreign.light_clean()
        await queue.light_clean()
    held = {item.id for item in taken if item}
    assert held.isdisjoint(done)
    for item_id in held:
        assert await foreign.complete(item_id)
    assert done | held == {*ours, *(f"f{n}" for n in range(10))}
    await queue.limits.remove(group="*")
    assert await queue.lease(30, block=False) is None
    await queue.light_clean()
    assert (await queue.counts())[:3] == (0, 0, 0)
    await queue.close()
    assert await shared.keys() == {"fence"}


async def test_what_a_foreign_deep_clean_would_push_is_put_back(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """It pushes ids that are in no list it knows; those of lanes have a lease key, others are put back."""
    for n in range(6):
        await queue.add_item(Item(b"", f"i{n}"), priority=n % 2)
    assert await queue.pause() is not None
    for item_id in (f"i{n}" for n in range(6)):
        if not await shared.redis.exists(f"{shared.name}:lease:{item_id}"):
            await shared.redis.lpush(f"{shared.name}:queue", item_id)
    await foreign.light_clean()
    assert await queue.lease(30, block=False) is None
    assert await shared.ids("queue") == []
    await queue.resume()
    leases = [*await queue.lease_many(20, 30, block=False)]
    assert sorted(lease.id for lease in leases) == [f"i{n}" for n in range(6)]
    assert await queue.complete_many(leases) == [True] * 6
    assert await queue.lease(30, block=False) is None
    await queue.close()
    assert await shared.keys() == {"fence"}
