"""Bulk adds while tasks, workers, the driver and the server are killed: each item is added once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from leasequeue import AsyncWorkQueue
from tests.eventually import eventually
from tests.faults.test_killed_server import kill, start
from tests.spark.programs.write_program import BATCH_ROWS
from tests.spark.tables import names, waiting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROWS = 12_000
PROGRAM = Path(__file__).with_name("write_program.py")
ROOT = Path(__file__).parents[3]
#: The longest start of a driver (s).
TIMEOUT = 900


class Driver:
    """A running driver, in a separate process group."""

    def __init__(self, place: Path, queue: AsyncWorkQueue, fault: str = "", **options: Any) -> None:
        asked = {"url": queue.url, "queue": queue.name, "rows": ROWS, "fault": fault, "options": options}
        place.mkdir(exist_ok=True)
        self._go = place / "go"
        self._go.unlink(missing_ok=True)
        self._log = place / "log"
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(asked | {"place": str(place)})],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def go_on(self) -> None:
        """Let waiting tasks continue."""
        self._go.touch()

    def report(self) -> dict[str, Any]:
        """Wait for its end, and return its report."""
        said, _ = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0, self._log.read_text()[-3000:]
        report: dict[str, Any] = json.loads(said.splitlines()[-1])
        return report

    def kill(self) -> None:
        """Kill the driver, its JVM and their descendants."""
        below = [*descendants(self.process.pid)]
        for pid in (self.process.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def workers(self) -> list[int]:
        """Return the Python workers of its executor."""
        daemons = {pid for pid in descendants(self.process.pid) if b"pyspark.daemon" in command_of(pid)}
        return [pid for pid in daemons if parent_of(pid) in daemons]


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def descendants(root: int) -> Iterator[int]:
    """Return the descendants of a process."""
    parents = {int(path.name): parent_of(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    above = [root]
    while above:
        children = [pid for pid, parent in parents.items() if parent in above]
        yield from children
        above = children


class Drive(Protocol):
    """Start a driver; the end of the test kills it."""

    def __call__(self, queue: AsyncWorkQueue, fault: str = "", **options: Any) -> Driver: ...


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    """Return a function that starts drivers."""
    drivers: list[Driver] = []

    def start(queue: AsyncWorkQueue, fault: str = "", **options: Any) -> Driver:
        drivers.append(Driver(tmp_path / "driver", queue, fault, **options))
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.process.poll() is None:
            driver.kill()


async def half_way(queue: AsyncWorkQueue, least: int = 2 * BATCH_ROWS) -> None:
    """Wait until `least` items have been added."""
    async with asyncio.timeout(TIMEOUT):
        while (await queue.counts()).waiting < least:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.05)


async def complete_all(queue: AsyncWorkQueue) -> list[str]:
    """Complete all waiting items, as fast workers would, and return their ids."""
    done: list[str] = []
    while leases := await queue.lease_many(1000, 600, block=False):
        assert all(await queue.complete_many(leases))
        done += [lease.id for lease in leases]
    return done


async def test_a_task_that_fails_and_runs_again_adds_nothing_twice(
    queue: AsyncWorkQueue, drive: Drive
) -> None:
    driver = drive(queue, "fail")
    await half_way(queue)
    done = await complete_all(queue)
    driver.go_on()
    report = await asyncio.to_thread(driver.report)
    done += await complete_all(queue)
    assert sorted(done) == sorted(names(ROWS)), "each was there to be completed, once"
    assert (report["rows"], report["added"]) == (ROWS, ROWS)
    assert sum(one["repeated"] for one in report["partitions"]) >= 2 * BATCH_ROWS


async def test_killed_python_workers_are_replaced(queue: AsyncWorkQueue, drive: Drive) -> None:
    driver = drive(queue, "wait")
    await half_way(queue)
    done = await complete_all(queue)

    def both_run() -> bool:
        return len(driver.workers()) >= 2

    await eventually("both tasks have a Python worker", both_run, within=TIMEOUT)
    for pid in driver.workers():
        os.kill(pid, signal.SIGKILL)
    report = await asyncio.to_thread(driver.report)
    done += await complete_all(queue)
    assert sorted(done) == sorted(names(ROWS))
    assert (report["rows"], report["added"]) == (ROWS, ROWS)


@pytest.mark.parametrize(("job", "shards"), [("", None), ("nightly", None), ("nightly", 8)])
async def test_a_killed_driver_is_started_again(
    redis_url: str, name: str, drive: Drive, job: str, shards: int | None
) -> None:
    """With the same job name, completed items are not added again."""
    async with AsyncWorkQueue.from_url(redis_url, name, shards=shards) as queue:
        await queue.counts()  # notes the shards
        await _killed_and_started_again(queue, drive, job)


async def _killed_and_started_again(queue: AsyncWorkQueue, drive: Drive, job: str) -> None:
    options = {"job": job} if job else {}
    driver = drive(queue, "wait", **options)
    await half_way(queue)
    await asyncio.to_thread(driver.kill)
    done = await complete_all(queue) if job else []
    report = await asyncio.to_thread(drive(queue, **options).report)
    there = await waiting(queue)
    assert sorted([*done, *there]) == sorted(names(ROWS))
    assert report["added"] == (
        ROWS if job else ROWS - sum(one["already_there"] for one in report["partitions"])
    )


async def test_a_killed_server_is_restarted(
    make_server: MakeServer, tmp_path: Path, name: str, drive: Drive
) -> None:
    """It persists every step before it replies; requests in flight are repeated."""
    folder = tmp_path / "server"
    folder.mkdir()
    server = await start(make_server, folder)
    async with AsyncWorkQueue.from_url(server.url, name) as queue:
        driver = drive(queue, "slow")
        done: list[str] = []
        for _ in range(2):
            await half_way(queue, BATCH_ROWS)
            leases = await queue.lease_many(BATCH_ROWS, 600)  # not all: the program may add as quickly
            assert all(await queue.complete_many(leases))
            done += [lease.id for lease in leases]
            await kill(server)
            server = await start(make_server, folder, server.port)
        report = await asyncio.to_thread(driver.report)
        done += await complete_all(queue)
    assert sorted(done) == sorted(names(ROWS))
    assert (report["rows"], report["added"]) == (ROWS, ROWS)
