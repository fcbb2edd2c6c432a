"""`leasequeue clean`, once and with `--watch`."""

from __future__ import annotations

import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from tests.cli.program import started, use
from tests.queue.asking import take, until

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue


async def leave_an_expired_lease(queue: AsyncWorkQueue, item_id: str) -> None:
    """Lease an item for a millisecond, as a worker that dies."""
    await queue.add_item(Item(b"x", id=item_id))
    await take(queue, 0.001)


async def leave_an_orphan(redis: Redis, queue: AsyncWorkQueue, item_id: str) -> None:
    """Write the data of an item only, as a client of another library that dies while it adds an item."""
    await redis.set(f"{queue.name}:item:{item_id}", "x")


async def is_waiting(queue: AsyncWorkQueue, item_id: str) -> None:
    async def waits() -> bool:
        return item_id in [view.id for view in await queue.inspect()]

    await until(f"{item_id} waits", waits)


@asynccontextmanager
async def watching(url: str, *arguments: str) -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
    """Run `leasequeue clean --watch`, and wait for its first log line."""
    async with started("clean", "--watch", "--every", "200ms", "--url", url, *arguments) as process:
        assert process.stderr
        assert b"watching" in await process.stderr.readline()
        yield process, process.stderr


@pytest.mark.seed("RWQ-O13")
async def test_expired_leases_are_reclaimed(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await leave_an_expired_lease(queue, "x")
    outcome = await leasequeue("clean", queue.name)
    assert (outcome.code, outcome.err) == (0, "")
    titles, row = outcome.table
    assert titles == ["queue", "examined", "reclaimed", "dropped", "adopted", "restored", "repaired"]
    assert row[0] == queue.name
    assert row[2] == "1"
    assert await queue.counts() == (1, 0, 0, 0)


@pytest.mark.seed("RWQ-O14")
async def test_a_deep_clean_restores_items_that_are_in_no_list(
    leasequeue: Leasequeue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    first, second = make_queue(name=f"{name}-1"), make_queue(name=f"{name}-2")
    await leave_an_orphan(redis, first, "x")
    await use(second)
    outcome = await leasequeue("clean", first.name, second.name, "--json")
    assert [line["restored"] for line in outcome.documents] == [0, 0]
    outcome = await leasequeue("clean", first.name, second.name, "--json", "--deep")
    assert outcome.code == 0
    nothing = dict.fromkeys(["examined", "reclaimed", "dropped", "adopted", "restored", "repaired"], 0)
    assert outcome.documents == [
        {"queue": first.name, **nothing, "examined": 1, "restored": 1, "repaired": 1},
        {"queue": second.name, **nothing},
    ]


@pytest.mark.seed("RWQ-O21", "RWQ-O28", "RWQ-B1")
async def test_a_watch_reclaims_repairs_runs_schedules_and_drops_dead_letters_until_ctrl_c(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    await queue.add_item(Item(b"x", id="dead"))
    await queue.fail(await take(queue), "given up")
    await leave_an_expired_lease(queue, "before")
    await leave_an_orphan(redis, queue, "orphan")
    options = ("--keep-dead", "0s", "--deep", "--json")
    async with watching(redis_url, queue.name, *options) as (process, err):
        line = json.loads(await err.readline())
        assert line["level"] == "info"
        assert f"cleaned {queue.name}" in line["message"]
        assert {view.id for view in await queue.inspect()} == {"before", "orphan"}
        await queue.schedules.every(0.1, "poll")

        async def has_ticked() -> bool:
            counts = await queue.counts()
            return counts.waiting > 2 and counts.dead == 0

        await until("the schedule has ticked and the dead letter is gone", has_ticked)
        await queue.lease_many(100, 100)
        await leave_an_expired_lease(queue, "second")
        await is_waiting(queue, "second")
        process.send_signal(signal.SIGINT)
        out, rest = await process.communicate()
        assert (process.returncode, out) == (0, b"")
        assert json.loads(rest.splitlines()[-1])["message"] == "stopped"


async def test_a_watch_continues_when_the_server_was_away(
    make_server: MakeServer, make_queue: MakeQueue
) -> None:
    server = await make_server()
    port, url = server.port, f"redis://127.0.0.1:{server.port}"
    await server.stop()
    async with watching(url, "emails") as (process, err):
        assert b"emails could not be cleaned" in await err.readline()
        await make_server(port=port)
        queue = make_queue(name="emails", url=url)
        await leave_an_expired_lease(queue, "x")
        await is_waiting(queue, "x")
        process.terminate()
        assert await process.wait() == 0
