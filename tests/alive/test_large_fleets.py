"""Many workers of one queue: half of them die at once, the server restarts, or has no room for more.

They are those of `tests.alive.crowd`: 30 in the quick tests, up to 1,000 in the long ones.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.errors import TooManyConnections
from leasequeue.keys import session_origin
from leasequeue.wire import tls
from tests.alive.crowd import crowd, go, opened
from tests.eventually import LIMIT_SECONDS, eventually
from tests.queue.asking import kept, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasequeue.views import Event
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(3600)]

#: How many workers there are, of a queue with how many shards (0: none). Each is registered on each shard, so
#: that two cores run a tenth of the workers with 16 of them.
FLEETS = [(30, 0), *(pytest.param(*one, marks=pytest.mark.long) for one in ((1000, 0), (100, 16)))]
#: How long a test may wait: 1,000 workers take a minute to start on a busy machine (s).
LONG_SECONDS = 600.0


def held_items(count: int) -> list[Item]:
    """Return items whose runs last until `go`."""
    return [Item(b"hold", id=str(number)) for number in range(count)]


async def running(queue: AsyncWorkQueue, count: int) -> None:
    """Wait until so many items are leased, and no other is left."""

    async def are_leased() -> bool:
        counts = await queue.counts()
        return counts.leased == counts.total == count

    await until(f"{count} items are leased", are_leased, within=LONG_SECONDS)


async def completed(queue: AsyncWorkQueue, ids: Sequence[str]) -> list[Event]:
    """Wait until the queue is empty; each item was completed once. Return the events."""

    async def is_empty() -> bool:
        return not (await queue.counts()).total

    await until("all are completed", is_empty, within=LONG_SECONDS)
    events = await kept(queue)
    assert Counter(one.id for one in events if one.what == "completed") == dict.fromkeys(ids, 1)
    return events


@pytest.mark.parametrize(("count", "shards"), FLEETS)
async def test_all_items_of_one_half_that_dies_at_once_run_again_in_the_other(
    make_server: MakeServer, count: int, shards: int
) -> None:
    url = (await make_server()).url
    async with opened(url, "q", shards) as queue:
        await queue.events.keep(count=100_000)
        items = held_items(count)
        async with crowd(url, "q", count, shards=shards, concurrency=2, each=count // 4) as processes:
            await queue.add_items(items)
            await running(queue, count)
            dead, living = processes[:2], processes[2:]
            for one in dead:
                one.kill()
            leases = [one for one in await kept(queue) if one.what == "leased"]
            holders = {one.id: session_origin(one.holder or "") for one in leases}
            lost = {one for one, origin in holders.items() if origin and origin[1] in {p.pid for p in dead}}
            assert lost

            async def have_returned() -> bool:
                again = {one.id for one in await kept(queue) if one.what in {"reclaimed", "expired"}}
                return lost <= again

            await until("the items of the dead have returned", have_returned, within=LONG_SECONDS)
            await running(queue, count)
            await go(living)
            await completed(queue, [one.id for one in items])


@pytest.mark.parametrize(("count", "shards"), FLEETS)
async def test_after_a_restart_of_the_server_each_worker_leases_again(
    make_server: MakeServer, tmp_path: Path, count: int, shards: int
) -> None:
    """Each has one slot, so that all of them run an item at once; the last one is free for a delayed item."""
    server = await make_server(dir=tmp_path)
    async with opened(server.url, "q", shards) as queue:
        await queue.events.keep(count=100_000)
        async with crowd(server.url, "q", count, shards=shards, each=max(30, count // 4)) as processes:
            await server.stop()
            again = await make_server(dir=tmp_path, port=server.port)
            assert again.url == server.url
            items = held_items(count)
            await queue.add_items(items[1:])
            await running(queue, count - 1)
            await queue.add_item(items[0], delay=0.5)
            await running(queue, count)
            await go(processes)
            await completed(queue, [one.id for one in items])


async def test_without_room_for_a_connection_new_sessions_say_so_and_the_others_go_on(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts then keeps trying, and works when there is room."""
    url = (await make_server()).url
    ran = asyncio.Event()

    async def handle(_: bytes) -> None:
        ran.set()

    async with (
        Redis.from_url(url) as redis,
        AsyncWorkQueue.from_url(url, "q") as queue,
        crowd(url, "q", 5) as processes,
        AsyncWorkQueue.from_url(url, "q") as late,
    ):
        await queue.events.keep(count=100_000)
        has = (await redis.info("clients"))["connected_clients"]
        await redis.config_set("maxclients", has)
        with monkeypatch.context() as patched:
            patched.setattr(tls, "FULL_SECONDS", LIMIT_SECONDS)
            for _ in range(20):
                with pytest.raises(TooManyConnections, match="Raise that") as raised:
                    await late.add_item(Item(b"x", id="refused"))
                assert not raised.value.maybe_applied
        worker = Worker()
        worker.handler(late)(handle)
        working = asyncio.create_task(worker.run())
        await eventually("the worker says why", lambda: "`maxclients`" in " ".join(worker.health().reasons))
        assert worker.health().live
        items = held_items(5)
        await queue.add_items(items)
        await running(queue, 5)
        ids = [*(one.id for one in items), "sixth"]
        await queue.add_item(Item(b"x", id="sixth"))
        assert not ran.is_set()
        await redis.config_set("maxclients", has + 100)

        async def runs() -> bool:
            # Of the others, one may have leased two items ahead of its run, and another be free for these.
            ids.append(f"more {len(ids)}")
            await queue.add_item(Item(b"x", id=ids[-1]))
            await asyncio.sleep(0.05)
            return ran.is_set()

        await until("the worker runs an item", runs)
        await go(processes)
        await completed(queue, ids)
        worker.stop()
        await working
