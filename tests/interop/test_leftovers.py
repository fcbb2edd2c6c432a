"""Ours repairs what foreign clients leave when they die between two commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from tests.interop.conftest import Shared
    from tests.interop.foreign import Library

pytestmark = [pytest.mark.core, pytest.mark.slow]

# ------------------------------------------------------------------ in processing, without a lease key


@pytest.mark.seed("RWQ-B5")
async def test_an_item_that_is_being_leased_is_not_reclaimed(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    """RWQ-B5: between taking the id and writing the lease key, no key shows the lease."""
    worker = await shared.start(library, gated=True)
    await queue.add_item(Item(b"data", id="a"))
    leasing = await shared.stop(worker.lease(30), "SETEX {}:leased_by_session:a")
    assert await shared.ids("processing") == ["a"]
    report = await queue.deep_clean()
    assert (report.adopted, report.reclaimed, report.restored) == (1, 0, 0)
    shared.clock.advance(1.9)
    report = await queue.deep_clean()
    assert (report.adopted, report.reclaimed, report.restored) == (0, 0, 0)
    assert await queue.lease(30, block=False) is None
    shared.gate.let_go()
    assert await leasing == ("a", b"data")
    shared.clock.advance(1)
    assert await queue.lease(30, block=False) is None
    assert await worker.complete("a")
    shared.clock.advance(31)
    await queue.light_clean()
    assert await shared.keys() == set()


@pytest.mark.parametrize("command", ["GET {}:item:a", "SETEX {}:leased_by_session:a"])
async def test_an_item_whose_worker_died_before_it_wrote_its_lease_key_is_reclaimed(
    queue: AsyncWorkQueue, shared: Shared, library: Library, command: str
) -> None:
    """RWQ-B5: the grace is two seconds."""
    worker = await shared.start(library, gated=True)
    await queue.add_item(Item(b"data", id="a"))
    await worker.kill(await shared.stop(worker.lease(30), command))
    assert await shared.keys() == {"processing", "item:a"}
    await queue.light_clean()
    shared.clock.advance(1.9)
    assert await queue.lease(30, block=False) is None
    shared.clock.advance(0.2)
    await shared.finish("a")
    assert await shared.keys() == {"fence"}


@pytest.mark.seed("RWQ-T1")
async def test_an_item_that_a_foreign_worker_dropped_is_leased_when_its_lease_ends(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    """After a clean has seen a foreign lease, an idle waiter of ours gets the item when that lease ends."""
    worker = await shared.start(library)
    await worker.add("a", b"data")
    assert await worker.lease(1) == ("a", b"data")
    report = await queue.light_clean()
    assert (report.adopted, report.reclaimed) == (1, 0)
    lease = await shared.wait_and_lease()
    assert (lease.id, lease.data, lease.attempt) == ("a", b"data", 1)
    assert await queue.complete(lease)
    assert not await worker.complete("a")
    assert await shared.keys() == {"fence"}


# ------------------------------------------------------------------------------------------ in no list


@pytest.mark.slow  # the Node client
async def test_an_item_whose_producer_died_before_it_pushed_the_id_is_restored(
    queue: AsyncWorkQueue, shared: Shared
) -> None:
    """RWQ-B2, B10: the pipeline of the Node client is not a transaction; that of the Python client is."""
    producer = await shared.start("node", gated=True)
    await producer.kill(await shared.stop(producer.add("a", b"data"), "LPUSH {}:queue"))
    assert await shared.keys() == {"item:a"}
    assert not await queue.add_item(Item(b"other data", id="a"))
    report = await queue.light_clean()
    assert report.examined == 0
    assert await queue.lease(30, block=False) is None
    report = await queue.deep_clean()
    assert report.restored == 1
    assert (await queue.deep_clean()).restored == 0
    await shared.finish("a")
    assert await shared.keys() == {"fence"}


@pytest.mark.seed("RWQ-T2")
async def test_an_item_whose_cleaner_died_while_moving_it_is_restored(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    """RWQ-B10: the id is in `P:cleaning` alone, and the next foreign cleaner turns it into a ghost."""
    cleaner = await shared.start(library, gated=True)
    worker = await shared.start("python")
    await worker.add("a", b"data")
    assert await worker.lease(30)
    await shared.redis.delete(f"{shared.name}:leased_by_session:a")
    await cleaner.kill(await shared.stop(cleaner.light_clean(), "LPUSH {}:queue"))
    assert await shared.keys() == {"cleaning", "item:a"}
    assert (await queue.light_clean()).examined == 0
    assert (await queue.deep_clean()).restored == 1
    await shared.finish("a")

    await (await shared.start(library)).light_clean()
    assert await shared.ids("queue") == ["a"]
    assert await queue.lease(30, block=False) is None
    assert await shared.keys() == {"fence"}


@pytest.mark.slow  # the Node client
async def test_an_item_whose_worker_died_while_completing_is_leased_when_its_lease_ends(
    queue: AsyncWorkQueue, shared: Shared
) -> None:
    """RWQ-B10: the id is in no list, and the lease has not expired."""
    worker = await shared.start("node", gated=True)
    await worker.add("a", b"data")
    assert await worker.lease(600) == ("a", b"data")
    await worker.kill(await shared.stop(worker.complete("a"), "DEL {}:item:a"))
    assert await shared.keys() == {"item:a", "leased_by_session:a"}
    assert (await queue.deep_clean()).restored == 0
    assert await queue.lease(30, block=False) is None
    await shared.redis.delete(f"{shared.name}:leased_by_session:a")  # as when the lease expires
    shared.clock.advance(601)
    lease = await shared.lease()
    assert lease.id == "a"
    assert await queue.complete(lease)
    assert await shared.keys() == {"fence"}
