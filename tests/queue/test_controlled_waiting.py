"""Sessions that wait in a controlled queue: what may be leased wakes one of them, and nothing else does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.queue.leasing import LeaseDispatcher
from leasequeue.queue.pushes import listener
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue import AsyncWorkQueue, Lease
    from tests.queue.fixtures import MakeQueue


class Trips:
    """Counts the calls of `lease_many` of all queues."""

    count = 0


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    counted, send = Trips(), LeaseDispatcher._send

    def counting(self: LeaseDispatcher) -> None:
        counted.count += 1
        send(self)

    monkeypatch.setattr(LeaseDispatcher, "_send", counting)
    return counted


async def control(queue: AsyncWorkQueue, *rows: tuple[str, object]) -> None:
    """Set limits."""
    values = [str(value).encode() for row in rows for value in row]
    assert (await queue._engine().run("set_limits", values))[0] == 0


async def pause(queue: AsyncWorkQueue, until: bytes, group: bytes = b"") -> None:
    await queue._engine().run("pause_queue", of_group=group, until_ms=until, reason=b"")


@asynccontextmanager
async def waiting(
    make_queue: MakeQueue, sessions: int, name: str | None = None
) -> AsyncIterator[asyncio.Queue[Lease]]:
    """Have that many sessions wait; give what they lease, one item at a time each."""
    leased: asyncio.Queue[Lease] = asyncio.Queue()
    queues = [make_queue(name=name) for _ in range(sessions)]

    async def consume(queue: AsyncWorkQueue) -> None:
        while (lease := await queue.lease(30)) is not None:
            leased.put_nowait(lease)

    tasks = [asyncio.create_task(consume(queue)) for queue in queues]
    for queue in queues:
        await eventually("it listens", lambda queue=queue: is_blocked(queue))  # type: ignore[misc]
    try:
        yield leased
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def is_blocked(queue: AsyncWorkQueue) -> bool:
    dispatcher = queue._engine().leasing
    listener = dispatcher._listener
    return (
        bool(dispatcher._waiting)
        and not dispatcher._gate.busy
        and listener._connection is not None
        and listener._registered_on is listener._connection
    )


@pytest.mark.parametrize("sessions", [1, 20])
@pytest.mark.parametrize("group", ["", "g"])
async def test_a_slot_that_is_freed_is_used_by_one_waiting_session(
    make_queue: MakeQueue, trips: Trips, sessions: int, group: str
) -> None:
    queue = make_queue()
    await control(queue, (f"concurrency/{group}" if group else "concurrency", 2))
    async with waiting(make_queue, sessions) as leased:
        trips.count = 0
        await queue.add_items([Item(b"", f"i{n}") for n in range(20)], group=group or None)
        held = [await leased.get() for _ in range(2)]
        for _ in range(18):
            assert leased.empty()
            assert (await queue.counts()).leased == 2
            await queue.complete(held.pop(0))
            held.append(await leased.get())
        # Two calls an item, one of the session that is woken, and some that cross; waking all would be 360.
        assert trips.count <= 80


@pytest.mark.parametrize("sessions", [1, 20])
@pytest.mark.parametrize("group", ["", "g"])
async def test_an_item_that_a_rate_permits_now_is_leased_by_one_waiting_session(
    make_queue: MakeQueue, trips: Trips, sessions: int, group: str
) -> None:
    queue = make_queue()
    await control(queue, (f"rate/{group}" if group else "rate", "40000:1"))
    async with waiting(make_queue, sessions) as leased:
        trips.count = 0
        await queue.add_items([Item(b"", f"i{n}") for n in range(15)], group=group or None)
        leases = [await leased.get() for _ in range(15)]
        assert {lease.id for lease in leases} == {f"i{n}" for n in range(15)}
        assert trips.count <= 75  # waking all would be 300


async def test_items_added_for_a_group_that_has_used_its_rate_wake_few_sessions(
    make_queue: MakeQueue, trips: Trips
) -> None:
    queue = make_queue()
    await control(queue, ("rate/g", "3600000000:1"))
    async with waiting(make_queue, 20) as leased:
        await queue.add_item(Item(b"", "first"), group="g")
        await leased.get()
        trips.count = 0
        for n in range(30):
            await queue.add_item(Item(b"", f"i{n}"), group="g")
        await queue.add_item(Item(b"", "other"), group="h")
        assert (await leased.get()).id == "other"
        assert leased.empty()
        assert trips.count <= 10


async def test_adding_to_a_paused_queue_wakes_no_session_and_resuming_wakes_as_many_as_needed(
    make_queue: MakeQueue, trips: Trips
) -> None:
    queue = make_queue()
    async with waiting(make_queue, 10) as leased:
        await pause(queue, b"inf")
        trips.count = 0
        for n in range(20):
            await queue.add_item(Item(b"", f"i{n}"), priority=n % 2)
        assert trips.count == 0
        assert leased.empty()
        await pause(queue, b"")
        assert {(await leased.get()).id for _ in range(20)} == {f"i{n}" for n in range(20)}


@pytest.mark.parametrize("sessions", [1, 20])
@pytest.mark.parametrize("first", ["add", "wait"])
@pytest.mark.seed("GLD-B14")
async def test_a_completion_wakes_one_session_of_another_queue_that_shares_limits(
    make_queue: MakeQueue, name: str, trips: Trips, monkeypatch: pytest.MonkeyPatch, sessions: int, first: str
) -> None:
    monkeypatch.setattr(listener, "BLOCK_SECONDS", 3600)  # no session asks again by itself
    monkeypatch.setattr(listener, "KEEP_MS", 4_000_000)
    one, other = make_queue(name=f"{{{name}}}:a"), make_queue(name=f"{{{name}}}:b")
    for queue in (one, other):
        await queue.limits.set(shared=f"{{{name}}}:pool", concurrency=1)
    await one.add_item(Item(b""))
    held = await one.lease(3600)
    items = [Item(b"", f"i{n}") for n in range(10)]
    if first == "add":
        await other.add_items(items)
    async with asyncio.timeout(120), waiting(make_queue, sessions, other.name) as leased:
        if first == "wait":
            await other.add_items(items)
        trips.count = 0
        assert leased.empty()
        await one.complete(held)
        await other.complete(await leased.get())
        for _ in items[1:]:
            assert leased.qsize() <= 1  # the next may be leased before the reply to the completion is read
            await other.complete(await leased.get())
        assert trips.count <= 35
