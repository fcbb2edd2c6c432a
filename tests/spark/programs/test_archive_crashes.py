"""The job `archive`, with each process killed at each step of a batch.

The archive holds each event of the queue once, and at any time whole batches alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.cli.program import started
from tests.eventually import eventually
from tests.faults.test_killed_server import kill, start
from tests.spark.programs.archive_program import STEPS
from tests.spark.programs.runs import Runs, names_of
from tests.spark.programs.test_write_crashes import descendants

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

PROGRAM = "tests.spark.programs.archive_program"
ROWS = 1000
#: Each item emits three events, which makes seven and a half batches.
ITEMS = 2_500
#: A run that is killed at one of these is repeated; `dropped` needs an earlier output.
FAULTS = [
    *("planned:0", "begun:0", "read:1", "counted:1", "beside:2"),
    *("placed:3", "dropped:3", "committed:4"),
]
#: The fields of an event in an archive and a queue, except its times.
COLUMNS = ["number", "what", "id", "holder", "token", "attempt", "size", "front", "error"]


class Archive(Runs):
    """Runs of the program, one after the other, into one archive."""

    @property
    def output(self) -> Path:
        return self.folder / "archive"

    def has(self, *signs: str) -> bool:
        """Return whether a path with one of these prefixes exists."""
        return any(any(self.output.glob(f"{sign}*")) for sign in signs)

    def log_holds(self, which: str, batch: int) -> bool:
        """Return whether a log of the checkpoint, `offsets` or `commits`, names a batch."""
        return (self.output / "_checkpoint" / which / f"{batch}").exists()

    def events(self) -> list[tuple[Any, ...]]:
        """Return all readable events, ordered by number."""
        if not any(self.output.glob("batch=*")):
            return []
        table = pyarrow.dataset.dataset(self.output, partitioning="hive").to_table(columns=COLUMNS)
        return sorted(zip(*table.to_pydict().values(), strict=True))

    async def finish(self, name: str) -> dict[str, Any]:
        """Run the command and return its report."""
        async with command(self, name) as process:
            out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        report: dict[str, Any] = json.loads(out)
        return report


@asynccontextmanager
async def command(archive: Archive, name: str) -> AsyncIterator[Process]:
    """Start the command."""
    arguments = ("pipeline", "archive", name, str(archive.output), "--batch", str(ROWS), "--json")
    async with started(*arguments, environment={"LEASEQUEUE_URL": archive.server.url}) as process:
        yield process


async def work(queue: AsyncWorkQueue, first: int, count: int) -> None:
    """Add items; most are completed, and some fail."""
    await queue.add_items(
        [Item(f"data of {number}", id=f"i{number}") for number in range(first, first + count)]
    )
    while leases := await queue.lease_many(1000, 600, block=False):
        for lease in leases[:2]:
            await queue.fail(lease, f"no letter {lease.id}")
        assert all(await queue.complete_many(leases[2:]))


async def events_of(queue: AsyncWorkQueue) -> list[tuple[Any, ...]]:
    """Return all events on the server."""
    return [tuple(getattr(event, column) for column in COLUMNS) async for event in queue.events(follow=False)]


@pytest.fixture
async def archive(make_server: MakeServer, tmp_path: Path, name: str) -> Archive:
    """Return a queue with events on a persistent server, and its archive."""
    server = await start(make_server, tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, name) as queue:
        await queue.events.keep(count=1_000_000)
        await work(queue, 0, ITEMS)
        first = (await events_of(queue))[0][0]
    archive = Archive(
        tmp_path, server, "tests.spark.programs.archive_program", name, str(tmp_path), str(ROWS)
    )
    (archive.notes / "before").write_text(str(first - 1))
    return archive


async def check(archive: Archive, name: str) -> None:
    """Check that the archive holds each event once, and belongs to its checkpoint."""
    async with AsyncWorkQueue.from_url(archive.server.url, name) as queue:
        there = await events_of(queue)
    assert len(there) >= 3 * ITEMS
    assert archive.events() == there, "each event once, as it was"
    assert not [*archive.output.glob("_batch*")]
    query = json.loads((archive.output / "_checkpoint" / "metadata").read_text())["id"]
    assert (archive.output / "_query").read_text() == query


def check_place(archive: Archive, fault: str) -> None:
    """Check that it died at the fault, and that only whole batches, from the first on, can be read."""
    step, batch = fault.split(":")
    number, past = int(batch), STEPS.index(step)
    assert archive.log_holds("offsets", number) == (step != "planned")
    assert archive.log_holds("commits", number) == (step == "committed")
    if past >= STEPS.index("read"):
        beside = archive.output.glob(f"_batch-{number:08}-*/_SUCCESS")
        assert any(beside) == (step in ("beside", "dropped"))
    first = int((archive.notes / "before").read_text()) + 1
    there = number + (step in ("placed", "committed"))
    assert [row[0] for row in archive.events()] == [*range(first, first + there * ROWS)]


@pytest.mark.parametrize("victim", ["driver", "jvm"])
async def test_the_driver_or_its_jvm_is_killed_at_each_step(
    archive: Archive, name: str, victim: str, make_server: MakeServer, tmp_path: Path
) -> None:
    """Work continues in between, and the server is killed too."""
    for number, fault in enumerate(FAULTS, 1):
        assert await archive.run(victim, [fault]) != 0
        assert archive.done == names_of(FAULTS[:number])
        check_place(archive, fault)
        async with AsyncWorkQueue.from_url(archive.server.url, name) as queue:
            await work(queue, ITEMS + 10 * number, 10)
        await kill(archive.server)
        archive.server = await start(make_server, tmp_path / "data", archive.server.port)
    before = len(archive.events())
    report = await archive.finish(name)
    await check(archive, name)
    assert report["events"] == len(archive.events()) - before


async def test_workers_are_killed_while_they_read_and_while_they_plan(archive: Archive, name: str) -> None:
    """Spark replaces an executor's worker; without the driver's worker the query fails."""
    reading = ["read:0", "read:3", "read:7"]
    for fault in ("planned:1", "committed:2"):
        assert await archive.run("worker", [*reading, fault]) != 0
        check_place(archive, fault)
    assert await archive.run("worker", reading) == 0, archive.log
    assert archive.done == names_of([*reading, "planned:1", "committed:2"])
    await check(archive, name)


async def test_the_job_survives_a_killed_server_at_each_step(
    archive: Archive, name: str, make_server: MakeServer
) -> None:
    faults = ["planned:0", "read:1", "counted:2", "beside:3", "dropped:4", "placed:5", "committed:6"]
    assert await archive.run_while_the_server_dies(faults, make_server) == 0, archive.log
    assert archive.done == names_of(faults)
    await check(archive, name)


async def test_the_command_and_its_children_are_killed_while_workers_run(archive: Archive, name: str) -> None:
    # A batch that is written is soon renamed.
    signs = (
        ["_checkpoint/offsets/0"],
        ["_batch-00000001", "batch=00000001"],
        ["batch=00000003"],
        ["_checkpoint/commits/4"],
    )
    async with AsyncWorkQueue.from_url(archive.server.url, name) as queue:
        working = asyncio.create_task(keep_working(queue))
        try:
            for some in signs:
                async with command(archive, name) as process:
                    await eventually(f"{some} is there", partial(archive.has, *some), within=600)
                    kill_all(process)
                    await process.communicate()
                assert len(archive.events()) % ROWS == 0
        finally:
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working
    await archive.finish(name)
    await check(archive, name)


async def keep_working(queue: AsyncWorkQueue) -> None:
    """Work endlessly, but slowly enough for the archive."""
    number = ITEMS
    while True:
        await work(queue, number, 10)
        number += 10
        await asyncio.sleep(0.2)


def kill_all(process: Process) -> None:
    """Kill a process and its descendants."""
    for pid in (process.pid, *descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
