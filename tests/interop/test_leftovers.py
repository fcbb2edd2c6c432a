"""Ours repairs what foreign clients leave when they die between two commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, Item
from tests.interop.state import finish, ids_in, keys_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasehold.testing import Clock
    from tests.interop.conftest import StartForeign
    from tests.interop.foreign import Library
    from tests.interop.gate import Gate

pytestmark = [pytest.mark.core, pytest.mark.slow]

# ------------------------------------------------------------------ in processing, without a lease key


@pytest.mark.seed("RWQ-B5")
async def test_an_item_that_is_being_leased_is_not_reclaimed(
    queue: AsyncWorkQueue,
    redis: Redis,
    name: str,
    clock: Clock,
    start: StartForeign,
    library: Library,
    gate: Gate,
) -> None:
    """RWQ-B5: between taking the id and writing the lease key, no key shows the lease."""
    worker = await start(library, gated=True)
    await queue.add_item(Item(b"data", id="a"))
    leasing = await gate.stop(worker.lease(30), before=f"SETEX {name}:leased_by_session:a")
    assert await ids_in(redis, f"{name}:processing") == ["a"]
    report = await queue.deep_clean()
    assert (report.adopted, report.reclaimed, report.restored) == (1, 0, 0)
    clock.advance(1.9)
    report = await queue.deep_clean()
    assert (report.adopted, report.reclaimed, report.restored) == (0, 0, 0)
    assert await queue.lease(30, block=False) is None
    gate.let_go()
    assert await leasing == ("a", b"data")
    clock.advance(1)
    assert await queue.lease(30, block=False) is None
    assert await worker.complete("a")
    clock.advance(31)
    await queue.light_clean()
    assert await keys_of(redis, name) == set()


@pytest.mark.parametrize("command", ["GET {}:item:a", "SETEX {}:leased_by_session:a"])
async def test_an_item_whose_worker_died_before_it_wrote_its_lease_key_is_reclaimed(
    queue: AsyncWorkQueue,
    redis: Redis,
    name: str,
    clock: Clock,
    start: StartForeign,
    library: Library,
    gate: Gate,
    command: str,
) -> None:
    """RWQ-B5: the grace is two seconds."""
    worker = await start(library, gated=True)
    await queue.add_item(Item(b"data", id="a"))
    await worker.kill(await gate.stop(worker.lease(30), before=command.format(name)))
    assert await keys_of(redis, name) == {"processing", "item:a"}
    await queue.light_clean()
    clock.advance(1.9)
    assert await queue.lease(30, block=False) is None
    clock.advance(0.2)
    await finish(queue, "a")
    assert await keys_of(redis, name) == {"fence"}


@pytest.mark.seed("RWQ-T1")
async def test_an_item_that_a_foreign_worker_dropped_is_leased_when_its_lease_ends(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library
) -> None:
    """After a clean has seen a foreign lease, an idle waiter of ours gets the item when that lease ends."""
    worker = await start(library)
    await worker.add("a", b"data")
    assert await worker.lease(1) == ("a", b"data")
    report = await queue.light_clean()
    assert (report.adopted, report.reclaimed) == (1, 0)
    async with AsyncWorkQueue(name, redis) as ours:
        lease = await ours.lease(30, timeout=20)
    assert lease is not None
    assert (lease.id, lease.data, lease.attempt) == ("a", b"data", 1)
    assert await queue.complete(lease)
    assert not await worker.complete("a")
    assert await keys_of(redis, name) == {"fence"}


# ------------------------------------------------------------------------------------------ in no list


@pytest.mark.slow  # the Node client
async def test_an_item_whose_producer_died_before_it_pushed_the_id_is_restored(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, gate: Gate
) -> None:
    """RWQ-B2, B10: the pipeline of the Node client is not a transaction; that of the Python client is."""
    producer = await start("node", gated=True)
    await producer.kill(await gate.stop(producer.add("a", b"data"), before=f"LPUSH {name}:queue"))
    assert await keys_of(redis, name) == {"item:a"}
    assert not await queue.add_item(Item(b"other data", id="a"))
    report = await queue.light_clean()
    assert report.examined == 0
    assert await queue.lease(30, block=False) is None
    report = await queue.deep_clean()
    assert report.restored == 1
    assert (await queue.deep_clean()).restored == 0
    await finish(queue, "a")
    assert await keys_of(redis, name) == {"fence"}


@pytest.mark.seed("RWQ-T2")
async def test_an_item_whose_cleaner_died_while_moving_it_is_restored(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library, gate: Gate
) -> None:
    """RWQ-B10: the id is in `P:cleaning` alone, and the next foreign cleaner turns it into a ghost."""
    cleaner = await start(library, gated=True)
    worker = await start("python")
    await worker.add("a", b"data")
    assert await worker.lease(30)
    await redis.delete(f"{name}:leased_by_session:a")
    await cleaner.kill(await gate.stop(cleaner.light_clean(), before=f"LPUSH {name}:queue"))
    assert await keys_of(redis, name) == {"cleaning", "item:a"}
    assert (await queue.light_clean()).examined == 0
    assert (await queue.deep_clean()).restored == 1
    await finish(queue, "a")

    await (await start(library)).light_clean()
    assert await ids_in(redis, f"{name}:queue") == ["a"]
    assert await queue.lease(30, block=False) is None
    assert await keys_of(redis, name) == {"fence"}


@pytest.mark.slow  # the Node client
async def test_an_item_whose_worker_died_while_completing_is_leased_when_its_lease_ends(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, gate: Gate
) -> None:
    """RWQ-B10: the id is in no list, and the lease has not expired."""
    worker = await start("node", gated=True)
    await worker.add("a", b"data")
    assert await worker.lease(2) == ("a", b"data")
    await worker.kill(await gate.stop(worker.complete("a"), before=f"DEL {name}:item:a"))
    assert await keys_of(redis, name) == {"item:a", "leased_by_session:a"}
    assert (await queue.deep_clean()).restored == 0
    assert await queue.lease(30, block=False) is None
    async with AsyncWorkQueue(name, redis) as ours:
        lease = await ours.lease(30, timeout=20)
    assert lease is not None
    assert lease.id == "a"
    assert await queue.complete(lease)
    assert await keys_of(redis, name) == {"fence"}
