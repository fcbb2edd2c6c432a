"""A query that drains a queue, and everything that can be killed, killed at each step of a micro-batch.

The table of what was written is right by its ids; nothing stays leased; an item is read again only as part of
the batch that it was in.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from redis.asyncio import Redis

from leasehold import AsyncWorkQueue, Item
from tests.queue.asking import command, until
from tests.queue.keyspace import audit, left_over
from tests.spark.harm import STEPS, is_there

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from leasehold import EmbeddedServer
    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

ROWS = 50
IDS = [f"i{number}" for number in range(8 * ROWS)]
#: Each step, in a batch of its own.
HARMS = [f"{step}:{batch}" for batch, step in enumerate(STEPS, 2)]


class Drain:
    """Runs of the program, one after the other, on one checkpoint."""

    def __init__(self, folder: Path, server: EmbeddedServer, name: str) -> None:
        self.folder = folder
        self.server = server
        self._name = name
        self._notes = folder / "notes"
        self._notes.mkdir()

    async def start(self, whom: str, harms: Sequence[str]) -> asyncio.subprocess.Process:
        (self._notes / "pid-server").write_text(str(self.server.pid))
        environment = {
            "HARM_WHOM": whom,
            "HARM_AT": ",".join(harms),
            "HARM_PLACE": str(self._notes),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        log = (self.folder / "log").open("a")
        with log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.spark.drain_program"),
                *(self.server.url, self._name, str(self.folder), str(ROWS)),
                env=os.environ | environment,
                stdout=log,
                stderr=log,
            )

    async def run(self, whom: str, harms: Sequence[str]) -> int:
        """Run to the end, and until its JVM has ended, too."""
        process = await self.start(whom, harms)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        jvm = int((self._notes / "pid-jvm").read_text())

        async def has_ended() -> bool:
            return not is_there(jvm)

        await until("the JVM has ended", has_ended, within=60)
        return code

    @property
    def done(self) -> list[str]:
        """Which harms were done."""
        return sorted(path.name for path in self._notes.glob("done-*"))

    def written(self) -> list[str]:
        """The ids of the table."""
        table = pyarrow.dataset.dataset(self.folder / "out", partitioning="hive").to_table(columns=["id"])
        return sorted(table["id"].to_pylist())

    def read(self) -> dict[str, set[str]]:
        """In which batches each id was read."""
        batches: dict[str, set[str]] = defaultdict(set)
        for journal in self._notes.glob("read-*"):
            for line in journal.read_text().splitlines():
                batch, item_id = line.split()
                batches[item_id].add(batch)
        return batches


@pytest.fixture
async def drain(make_server: MakeServer, tmp_path: Path, name: str) -> Drain:
    """Give a queue with items on a server that keeps its data, and somebody who drains it."""
    server = await make_server(dir=tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, name) as queue:
        await queue.events.keep(count=1_000_000)
        await queue.add_items([Item(f"data of {item_id}", id=item_id) for item_id in IDS])
    return Drain(tmp_path, server, name)


async def check(drain: Drain, name: str, harms: Sequence[str]) -> None:
    assert drain.done == sorted(f"done-{harm.replace(':', '-')}" for harm in harms)
    assert drain.written() == sorted(IDS), "each id once"
    read = drain.read()
    assert read.keys() == {*IDS}
    assert all(len(batches) == 1 for batches in read.values()), "read again only in the same batch"
    async with (
        Redis.from_url(drain.server.url) as redis,
        AsyncWorkQueue.from_url(drain.server.url, name) as queue,
    ):
        told = Counter([(event.what, event.id) async for event in queue.events(follow=False)])
        assert {what for what, _ in told} <= {"added", "leased", "renewed", "completed"}
        assert all(told["leased", item_id] == told["completed", item_id] == 1 for item_id in IDS)
        await audit(redis, name)
        left = await left_over(redis, name)
    prefix = f"{name}:".encode()
    kept = {prefix + b"events", prefix + b"events:keep"}
    assert {key.removeprefix(prefix).partition(b":")[0] for key in left - kept} == {b"stream"}


@pytest.mark.parametrize("whom", ["driver", "jvm"])
async def test_the_driver_or_its_jvm_is_killed_at_each_step(drain: Drain, name: str, whom: str) -> None:
    for number, harm in enumerate(HARMS, 1):
        assert await drain.run(whom, [harm]) != 0
        assert len(drain.done) == number
    assert await drain.run(whom, []) == 0, (drain.folder / "log").read_text()
    await check(drain, name, HARMS)


async def test_workers_of_executors_are_killed_while_they_read(drain: Drain, name: str) -> None:
    harms = ["read:1", "read:2", "read:5", "read:8"]
    assert await drain.run("worker", harms) == 0, (drain.folder / "log").read_text()
    await check(drain, name, harms)


async def test_the_process_that_leases_is_killed_at_each_step(drain: Drain, name: str) -> None:
    """It is a worker of the driver's: its query fails, and a new run goes on."""
    harms = ["before_lease:2", "after_lease:3", "after_commit:4"]
    for harm in harms:
        assert await drain.run("worker", [harm]) != 0
    assert await drain.run("worker", []) == 0, (drain.folder / "log").read_text()
    await check(drain, name, harms)


async def test_the_server_is_killed_at_each_step_and_the_query_goes_on(
    drain: Drain, name: str, make_server: MakeServer
) -> None:
    port = drain.server.port
    run = asyncio.create_task(drain.run("server", HARMS))
    try:
        for number in range(1, len(HARMS) + 1):

            async def was_killed(number: int = number) -> bool:
                return run.done() or (len(drain.done) == number and not drain.server.running)

            await until("the server was killed", was_killed, within=120)
            assert not run.done(), (drain.folder / "log").read_text()
            drain.server = await make_server(dir=drain.folder / "data", port=port)
            (drain.folder / "notes" / "pid-server").write_text(str(drain.server.pid))
        assert await run == 0, (drain.folder / "log").read_text()
    finally:
        run.cancel()
    await check(drain, name, HARMS)


async def test_what_has_lapsed_meanwhile_is_left_to_those_who_have_it(drain: Drain, name: str) -> None:
    """The items of a batch that is run again: some are done by others, some wait again, and come later."""
    assert await drain.run("driver", ["after_write:2"]) != 0
    async with (
        Redis.from_url(drain.server.url) as redis,
        AsyncWorkQueue.from_url(drain.server.url, name) as queue,
    ):
        mine = await items_of_the_set(redis, name)
        # The leases of two end now. One of them goes to somebody else, who finishes it.
        for item_id in mine[:2]:
            await command(redis, "ZADD", f"{name}:deadlines", 1, item_id)
        await queue.light_clean()
        await command(redis, "LREM", f"{name}:queue", 0, mine[0])
        await command(redis, "RPUSH", f"{name}:queue", mine[0])
        lease = await queue.lease(30, block=False)
        assert lease is not None
        assert lease.id == mine[0]
        await queue.complete(lease)
    assert await drain.run("driver", []) == 0, (drain.folder / "log").read_text()
    assert drain.written() == sorted({*IDS} - {mine[0]})
    assert {item_id for item_id, batches in drain.read().items() if len(batches) > 1} == {mine[1]}


async def items_of_the_set(redis: Redis, name: str) -> list[str]:
    """Give the ids of the only set there is."""
    [key] = [key async for key in redis.scan_iter(match=f"{name}:set:*")]
    entries: list[bytes] = await command(redis, "LRANGE", key, 0, -1)
    return [entry.decode().partition(" ")[2] for entry in entries]
