"""Foreign cleaners leave schedules alone, and foreign workers get the scheduled items."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.queue.keyspace import snapshot

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue
    from leasehold.testing import Clock
    from tests.interop.conftest import StartForeign
    from tests.interop.foreign import Library

pytestmark = pytest.mark.core


async def test_a_foreign_cleaner_leaves_schedules_alone_and_a_foreign_worker_gets_their_items(
    queue: AsyncWorkQueue, redis: Redis, name: str, clock: Clock, start: StartForeign, library: Library
) -> None:
    foreign = await start(library)
    await queue.schedules.every(60, "a", "data")
    await queue.schedules.cron("0 3 29 2 *", "b", "data")
    before = await snapshot(redis)
    await foreign.light_clean()
    assert await snapshot(redis) == before
    clock.advance(60)
    await queue.schedules.tick()
    leased = await foreign.lease(30)
    assert leased is not None
    item_id, data = leased
    assert item_id.startswith("a@")
    assert data == b"data"
    assert await foreign.complete(item_id)
    await queue.light_clean()
    await foreign.light_clean()
    kept = {f"{name}:{key}".encode() for key in ("schedules", "ticks", "schedule:a", "schedule:b")}
    assert set(await snapshot(redis)) == kept
