"""Foreign clients leave ids without an item, double ids and stale lease keys; ours repairs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item

if TYPE_CHECKING:
    from tests.interop.conftest import Shared
    from tests.interop.foreign import Foreign, Library

pytestmark = [pytest.mark.core, pytest.mark.slow]


# ---------------------------------------------------------------------------------------------- ghosts


@pytest.mark.parametrize("ghosts", [2, 2500])
@pytest.mark.parametrize("how", ["at once", "in time", "many", "after a clean"])
async def test_ghosts_do_not_make_a_queue_look_empty(
    queue: AsyncWorkQueue, shared: Shared, ghosts: int, how: str
) -> None:
    """RWQ-B9, G12: the queue is empty only if no item waits behind the ghosts."""
    foreign = await shared.start("python")
    for _ in range(3):
        await foreign.add("done", b"data")
    assert await foreign.lease(30) == ("done", b"data")
    assert await foreign.complete("done")
    await shared.redis.lpush(f"{shared.name}:queue", *["done"] * (ghosts - 1))
    await foreign.add("a", b"data")
    assert await queue.queue_len() == ghosts + 2
    if how == "after a clean":
        await queue.deep_clean()
    if how == "in time":
        leases = [await queue.lease(30, timeout=0.001)]
    elif how == "many":
        leases = [*await queue.lease_many(10, 30, block=False)]
    else:
        leases = [await queue.lease(30, block=False)]
    assert [lease and lease.id for lease in leases] == ["a"]
    assert leases[0] is not None
    assert await queue.complete(leases[0])
    await shared.finish()
    await queue.close()
    assert await shared.keys() == {"fence"}


async def test_a_ghost_that_a_foreign_worker_holds_is_dropped(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """The worker got it as an item without data; the id may be added again (RWQ-B4)."""
    await foreign.add("done", b"data")
    await foreign.add("done", b"data")
    assert await foreign.lease(30) == ("done", b"data")
    assert await foreign.complete("done")
    assert await foreign.lease(30) == ("done", b"")
    assert await shared.keys() == {"processing", "leased_by_session:done"}
    report = await queue.light_clean()
    assert (report.examined, report.dropped) == (1, 1)
    assert await queue.add_item(Item(b"new", id="done"))
    await shared.finish("done")
    assert not await foreign.complete("done")
    assert await shared.keys() == {"fence"}


@pytest.mark.slow  # the Node client
@pytest.mark.parametrize("real", [False, True], ids=["no such item", "an item of that name"])
async def test_the_zero_that_the_node_cleaner_adds_is_dropped(
    queue: AsyncWorkQueue, shared: Shared, *, real: bool
) -> None:
    """Its push of an item pushes a "0" as well: a ghost, or, if there is an item "0", a double of it."""
    node = await shared.start("node")
    held = None
    if real:
        await queue.add_item(Item(b"zero", id="0"))
        held = await queue.lease(30)
    await node.add("a", b"data")
    assert await node.lease(30) == ("a", b"data")
    await shared.requeue("a", node)
    assert await shared.ids("queue") == ["0", "a"]
    await shared.finish("a")
    if held:
        assert await queue.complete(held)
    assert not await node.complete("a")
    assert await shared.keys() == {"fence"}


# --------------------------------------------------------------------------------------------- doubles


async def test_an_id_that_two_cleaners_pushed_is_leased_once(
    queue: AsyncWorkQueue, shared: Shared, library: Library
) -> None:
    """RWQ-B6: the second cleaner believes that the first one died, since the id is in `P:cleaning` alone."""
    slow, quick = await shared.start(library, gated=True), await shared.start("python")
    await queue.add_item(Item(b"data", id="a"))
    assert await quick.lease(30) == ("a", b"data")
    await shared.redis.delete(f"{shared.name}:leased_by_session:a")
    cleaning = await shared.stop(slow.light_clean(), "LPUSH {}:queue")
    await quick.light_clean()
    shared.gate.let_go()
    await cleaning
    waiting = await shared.ids("queue")
    assert waiting == (["a", "a"] if library == "python" else ["a", "0", "a"])

    async with AsyncWorkQueue(shared.name, shared.redis) as other:
        first = await shared.lease()
        assert await other.lease_many(5, 30, block=False) == []
        assert await queue.complete(first)
    assert await shared.ids("queue") == []
    assert await shared.keys() == {"fence"}


async def test_a_double_of_a_new_incarnation_is_not_leased_twice(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """RWQ-B8: the item is completed and added again while its id is twice in the queue."""
    for _ in range(3):
        await foreign.add("a", b"old")
    lease = await shared.lease()
    assert await queue.complete(lease)
    assert await shared.ids("queue") == ["a", "a"]
    assert await queue.add_item(Item(b"new", id="a"))
    again = await shared.lease()
    assert (again.data, again.attempt) == (b"new", 1)
    assert again.token > lease.token
    await shared.finish()
    assert not await queue.complete(lease)
    assert await queue.complete(again)
    assert await shared.keys() == {"fence"}


async def test_an_item_that_a_foreign_client_adds_again_while_we_hold_it_is_not_leased_twice(
    queue: AsyncWorkQueue, shared: Shared, foreign: Foreign
) -> None:
    """This version of the family does not check: it replaces the data and pushes the id again."""
    await queue.add_item(Item(b"data", id="a"))
    lease = await shared.lease()
    await foreign.add("a", b"other data")
    await shared.finish()
    assert await queue.renew(lease, 30)
    assert await queue.complete(lease)
    assert await shared.keys() == {"fence"}


# ------------------------------------------------------------------------------------ stale lease keys


@pytest.mark.parametrize("adder", ["ours", "theirs"])
async def test_the_lease_key_of_a_finished_item_does_not_block_the_next_incarnation(
    queue: AsyncWorkQueue, shared: Shared, library: Library, adder: str
) -> None:
    """RWQ-B4: the item of the second holder is completed before the holder writes its lease key."""
    slow, quick = await shared.start(library, gated=True), await shared.start("python")
    await quick.add("a", b"data")
    assert await quick.lease(30) == ("a", b"data")
    await shared.requeue("a", quick)
    leasing = await shared.stop(slow.lease(600), "SETEX {}:leased_by_session:a")
    assert await quick.complete("a")
    shared.gate.let_go()
    assert await leasing == ("a", b"data")
    assert await shared.keys() == {"leased_by_session:a"}

    if adder == "ours":
        # Our add knows that the key is of an earlier incarnation.
        assert await queue.add_item(Item(b"new", id="a"))
        await shared.finish("a")
    else:
        # A client may hold the item, as far as the keys show, until the lease key has expired.
        await quick.add("a", b"new")
        await shared.finish()
        await shared.redis.delete(f"{shared.name}:leased_by_session:a")
        assert await queue.lease(30, block=False) is None
        shared.clock.advance(600.1)
        lease = await shared.lease()
        assert lease.data == b"new"
        assert await queue.complete(lease)
    assert not await slow.complete("a")
    assert await shared.keys() == {"fence"}
