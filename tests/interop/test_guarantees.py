"""The guarantees of our leases beside foreign clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.queue import cleaning
from tests.queue.asking import blocked

if TYPE_CHECKING:
    from leasequeue.queue.engine import Engine
    from tests.interop.conftest import Shared
    from tests.interop.foreign import Foreign, Library

pytestmark = [pytest.mark.core, pytest.mark.slow]


async def test_a_leased_item_that_a_foreign_cleaner_moved_stays_leased(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    cleaner = await shared.start(library)
    await queue.add_item(Item(b"data", id="a"))
    lease = await shared.lease()
    await shared.requeue("a", cleaner)
    async with AsyncWorkQueue(shared.name, shared.redis) as other:
        assert await other.lease_many(5, 30, block=False) == []
        report = await other.deep_clean()
        assert (report.reclaimed, report.restored) == (0, 0)
        assert await other.lease(30, block=False) is None
    assert await queue.renew(lease, 30)
    assert [await queue.complete(lease) for _ in range(3)] == [True, False, False]
    assert await shared.keys() == {"fence"}


async def test_the_first_of_us_and_a_foreign_worker_completes_an_item_that_both_hold(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """Our `complete` is True at most once, and False if the foreign worker was first."""
    for number, ours_first in enumerate((True, False)):
        item_id = f"item-{number}"
        await queue.add_item(Item(b"data", id=item_id))
        lease = await shared.lease()
        await shared.requeue(item_id, await shared.start("python"))
        assert await foreign.lease(30) == (item_id, b"data")
        if ours_first:
            assert await queue.complete(lease)
            assert not await foreign.complete(item_id)
        else:
            assert await foreign.complete(item_id)
            assert not await queue.complete(lease)
        assert not await queue.complete(lease)
        assert await queue.lease(30, block=False) is None
        assert await shared.keys() == {"fence"}


async def test_tokens_grow_over_foreign_leases_and_new_incarnations(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    tokens = []
    for _ in range(3):
        await foreign.add("a", b"data")
        tokens.append((await shared.lease(1)).token)
        shared.clock.advance(1.1)
        await queue.light_clean()
        assert await foreign.lease(30) == ("a", b"data")
        await queue.light_clean()
        assert await foreign.complete("a")
        assert await queue.add_item(Item(b"data", id="a"))
        lease = await shared.lease()
        assert lease.attempt == 1
        tokens.append(lease.token)
        assert await queue.complete(lease)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("looks", [0, 1], ids=["before the first look", "before the second look"])
async def test_a_deep_clean_leaves_an_item_alone_that_is_being_leased(
    queue: AsyncWorkQueue, shared: Shared, library: Library, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """RWQ-B5: the item was leased between the scan for data and a walk over the queue.

    At the first look of the second case it is in no list: a client has written its data, and not yet its id.
    """
    worker = await shared.start(library, gated=True)
    await (worker.add("a", b"data") if looks == 0 else shared.redis.set(f"{shared.name}:item:a", b"data"))
    walk = cleaning._drop_waiting
    leasing = []
    left: list[set[bytes]] = []

    async def take_first(engine: Engine, suspects: set[bytes]) -> None:
        if len(left) == looks:
            if looks == 1:
                await shared.redis.lpush(f"{shared.name}:queue", "a")
            leasing.append(await shared.stop(worker.lease(30), "SETEX {}:leased_by_session:a"))
        await walk(engine, suspects)
        left.append({*suspects})

    monkeypatch.setattr(cleaning, "_drop_waiting", take_first)
    monkeypatch.setattr(cleaning._Hashes, "__contains__", lambda *_: False)
    assert (await queue.deep_clean()).restored == 0
    assert left == [{b"a"}, {b"a"}]
    assert await shared.ids("queue") == []
    shared.gate.let_go()
    assert await leasing[0] == ("a", b"data")
    assert await queue.lease(30, block=False) is None
    assert await worker.complete("a")


async def test_an_item_that_a_foreign_cleaner_took_from_a_foreign_worker_is_not_lost(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    """RWQ-B5: the cleaner ran while the item was being leased, so the worker cannot complete it.

    We lease it when the worker's lease has ended, and not before.
    """
    worker, cleaner = await shared.start(library, gated=True), await shared.start("python")
    await worker.add("a", b"data")
    leasing = await shared.stop(worker.lease(600), "SETEX {}:leased_by_session:a")
    await cleaner.light_clean()
    shared.gate.let_go()
    assert await leasing == ("a", b"data")
    assert await shared.ids("queue") == ["a"]
    assert await queue.lease(30, block=False) is None
    assert not await worker.complete("a")
    await shared.redis.delete(f"{shared.name}:leased_by_session:a")
    assert await queue.lease(30, block=False) is None
    shared.clock.advance(600.1)
    lease = await shared.lease()
    assert lease.data == b"data"
    assert await queue.complete(lease)
    assert await shared.keys() == {"fence"}


async def test_a_foreign_worker_completes_an_item_whose_id_we_have_noted_as_gone(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """In a long processing list, ids that are not found are noted in `P:gone` and removed later.

    A foreign cleaner had moved the id, so the note meets the entry of the next holder of the item.
    """
    await queue.add_items([Item(b"data", id="a"), *(Item(b"", id=f"other-{n}") for n in range(200))])
    await shared.lease(1)
    others = await queue.lease_many(200, 600, block=False)
    await shared.requeue("a", await shared.start("python"))
    shared.clock.advance(1.1)
    await queue.light_clean()
    assert await foreign.lease(30) == ("a", b"data")
    assert all([await queue.complete(lease) for lease in others])
    await queue.light_clean()
    assert await foreign.complete("a")
    await shared.finish()


async def test_an_item_for_a_cancelled_waiter_of_ours_goes_to_a_foreign_worker(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """The next id for a waiter moves to its inbox, which no foreign client reads."""
    assert await foreign.queue_len() == 0  # it is connected
    waiting = asyncio.create_task(queue.lease(30))
    await blocked(shared.redis, 1)
    waiting.cancel()
    await foreign.add("a", b"data")
    assert await foreign.lease(30, timeout=120) == ("a", b"data")
    assert await foreign.complete("a")
    await queue.close()
    assert await shared.keys() == set()
