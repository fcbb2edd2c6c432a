"""Ids without an item, ids twice in the queue, lease keys of nobody: made by foreign code, healed by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasehold import AsyncWorkQueue, Item
from tests.interop.state import finish, ids_in, keys_of

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from tests.interop.conftest import StartForeign
    from tests.interop.foreign import Foreign, Library
    from tests.interop.gate import Gate

pytestmark = pytest.mark.core


async def take_back(redis: Redis, name: str, item_id: str, cleaner: Foreign) -> None:
    """End a foreign lease before its time, and let a foreign cleaner put the item back."""
    await redis.delete(f"{name}:leased_by_session:{item_id}")
    await cleaner.light_clean()
    assert item_id in await ids_in(redis, f"{name}:queue")


# ---------------------------------------------------------------------------------------------- ghosts


@pytest.mark.parametrize("ghosts", [2, 2500])
@pytest.mark.parametrize("how", ["at once", "in time", "many", "after a clean"])
async def test_ghosts_do_not_make_a_queue_look_empty(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, ghosts: int, how: str
) -> None:
    """RWQ-B9, G12: "there is nothing" and "there was a ghost" are not the same."""
    foreign = await start("python")
    for _ in range(3):
        await foreign.add("done", b"data")
    assert await foreign.lease(30) == ("done", b"data")
    assert await foreign.complete("done")
    await redis.lpush(f"{name}:queue", *["done"] * (ghosts - 1))  # as many more as the test wants
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
    await finish(queue)
    await queue.close()
    assert await keys_of(redis, name) == {"fence"}


async def test_a_ghost_that_a_foreign_worker_holds_is_swept_away(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library
) -> None:
    """It is handed out as an item without data; the id may be added anew meanwhile (RWQ-B4)."""
    foreign = await start(library)
    await foreign.add("done", b"data")
    await foreign.add("done", b"data")
    assert await foreign.lease(30) == ("done", b"data")
    assert await foreign.complete("done")
    assert await foreign.lease(30) == ("done", b"")
    assert await keys_of(redis, name) == {"processing", "leased_by_session:done"}
    report = await queue.light_clean()
    assert (report.looked_at, report.dropped) == (1, 1)
    assert await queue.add_item(Item(b"new", id="done"))
    await finish(queue, "done")
    assert not await foreign.complete("done")
    assert await keys_of(redis, name) == {"fence"}


@pytest.mark.slow  # the Node client
@pytest.mark.parametrize("real", [False, True], ids=["no such item", "an item of that name"])
async def test_the_zero_that_the_node_cleaner_adds_is_dropped(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, *, real: bool
) -> None:
    """Its push of an item pushes a "0" as well: a ghost, or, if there is an item "0", a double of it."""
    node = await start("node")
    held = None
    if real:
        await queue.add_item(Item(b"zero", id="0"))
        held = await queue.lease(30)
    await node.add("a", b"data")
    assert await node.lease(30) == ("a", b"data")
    await take_back(redis, name, "a", node)
    assert await ids_in(redis, f"{name}:queue") == ["0", "a"]
    await finish(queue, "a")
    if held:
        assert await queue.complete(held)
    assert not await node.complete("a")
    assert await keys_of(redis, name) == {"fence"}


# --------------------------------------------------------------------------------------------- doubles


async def test_an_id_that_two_cleaners_pushed_is_leased_once(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library, gate: Gate
) -> None:
    """RWQ-B6: the second cleaner takes the first one for dead, since the id is in `P:cleaning` alone."""
    slow, quick = await start(library, gated=True), await start("python")
    await queue.add_item(Item(b"data", id="a"))
    assert await quick.lease(30) == ("a", b"data")
    await redis.delete(f"{name}:leased_by_session:a")
    cleaning = await gate.stop(slow.light_clean(), before=f"LPUSH {name}:queue")
    await quick.light_clean()
    gate.let_go()
    await cleaning
    waiting = await ids_in(redis, f"{name}:queue")
    assert waiting == (["a", "a"] if library == "python" else ["a", "0", "a"])

    async with AsyncWorkQueue(name, redis) as other:
        first = await queue.lease(30)
        assert first is not None
        assert await other.lease_many(5, 30, block=False) == []
        assert await queue.complete(first)
    assert await ids_in(redis, f"{name}:queue") == []
    assert await keys_of(redis, name) == {"fence"}


async def test_a_double_that_was_not_met_in_time_does_not_run_twice(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library
) -> None:
    """RWQ-B8: the item is finished and added again while its id is still twice in the queue."""
    foreign = await start(library)
    for _ in range(3):
        await foreign.add("a", b"old")
    lease = await queue.lease(30)
    assert lease is not None
    assert await queue.complete(lease)
    assert await ids_in(redis, f"{name}:queue") == ["a", "a"]
    assert await queue.add_item(Item(b"new", id="a"))
    again = await queue.lease(30)
    assert again is not None
    assert (again.data, again.attempt) == (b"new", 1)
    assert again.token > lease.token
    await finish(queue)
    assert not await queue.complete(lease)
    assert await queue.complete(again)
    assert await keys_of(redis, name) == {"fence"}


async def test_what_a_foreign_client_adds_while_we_hold_it_is_not_leased_twice(
    queue: AsyncWorkQueue, redis: Redis, name: str, start: StartForeign, library: Library
) -> None:
    """This version of the family adds without looking: data replaced, id pushed once more."""
    foreign = await start(library)
    await queue.add_item(Item(b"data", id="a"))
    lease = await queue.lease(30)
    assert lease is not None
    await foreign.add("a", b"other data")
    await finish(queue)
    assert await queue.renew(lease, 30)
    assert await queue.complete(lease)
    assert await keys_of(redis, name) == {"fence"}


# -------------------------------------------------------------------------------- lease keys of nobody


@pytest.mark.parametrize("adder", ["ours", "theirs"])
async def test_a_lease_key_of_a_finished_item_does_not_keep_the_next_one_back(
    queue: AsyncWorkQueue,
    redis: Redis,
    name: str,
    start: StartForeign,
    library: Library,
    gate: Gate,
    adder: str,
) -> None:
    """RWQ-B4: the second holder is handed an item that is finished before it writes its lease key."""
    slow, quick = await start(library, gated=True), await start("python")
    await quick.add("a", b"data")
    assert await quick.lease(30) == ("a", b"data")
    await take_back(redis, name, "a", quick)
    leasing = await gate.stop(slow.lease(2), before=f"SETEX {name}:leased_by_session:a")
    assert await quick.complete("a")
    gate.let_go()
    assert await leasing == ("a", b"data")
    assert await keys_of(redis, name) == {"leased_by_session:a"}

    if adder == "ours":
        # We know that the key is of an earlier incarnation.
        assert await queue.add_item(Item(b"new", id="a"))
        await finish(queue, "a")
    else:
        # The item may be in somebody's hands, for all that can be seen, until the key has gone.
        await quick.add("a", b"new")
        await finish(queue)
        async with AsyncWorkQueue(name, redis) as ours:
            lease = await ours.lease(30, timeout=20)
        assert lease is not None
        assert lease.data == b"new"
        assert await queue.complete(lease)
    assert not await slow.complete("a")
    assert await keys_of(redis, name) == {"fence"}
