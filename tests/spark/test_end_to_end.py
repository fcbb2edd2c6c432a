"""Real files in a real pipeline: loaded, processed while workers are killed, archived, reported."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import sys
import sysconfig
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue.spark.jobs.archive import archive
from leasequeue.spark.jobs.load import load
from leasequeue.spark.jobs.redrive import redrive
from leasequeue.spark.jobs.report import PAGE, report
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from pyspark.sql import DataFrame, SparkSession

    from leasequeue import AsyncWorkQueue

PROGRAM = Path(__file__).parent / "programs" / "files_program.py"
LIBRARY = Path(sysconfig.get_path("stdlib"))
#: Folders that differ between installations.
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "idlelib"}


def files() -> dict[str, bytes]:
    """Return the source files of the standard library by name."""
    return {
        str(path.relative_to(LIBRARY)): path.read_bytes()
        for path in sorted(LIBRARY.rglob("*.py"))
        if not LEFT_OUT & {*path.relative_to(LIBRARY).parts}
    }


@asynccontextmanager
async def workers(count: int, queue: AsyncWorkQueue, record: Path) -> AsyncIterator[list[Process]]:
    """Run workers, and kill them at the end of the block."""
    assert queue.url
    environment = {**os.environ, "REDIS_URL": queue.url, "QUEUE": queue.name, "RECORD": str(record)}
    running = [
        await asyncio.create_subprocess_exec(sys.executable, PROGRAM, env=environment) for _ in range(count)
    ]
    try:
        yield running
    finally:
        for process in running:
            if process.returncode is None:
                process.kill()
            await process.wait()


def lines_of(record: Path) -> list[str]:
    return record.read_text().splitlines()


async def until_lines(record: Path, count: int) -> None:
    """Wait until the workers have written `count` lines."""
    await eventually(f"there are {count} lines", lambda: len(lines_of(record)) >= count, within=900)


async def start_work(queue: AsyncWorkQueue, count: int, record: Path) -> None:
    """Start the work when each worker has leased an item."""

    async def all_have_leased() -> bool:
        return len({view.holder for view in await queue.inspect("leased", count=1000)}) == count

    await until("each worker has leased an item", all_have_leased)
    record.touch()  # noqa: ASYNC240 - a local file


async def until_done(queue: AsyncWorkQueue) -> None:
    """Wait until only dead letters are left."""
    async with asyncio.timeout(900):
        while any((await queue.counts())[:3]):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)


def check_workers(table: DataFrame, result: dict[str, Any], pids: set[int]) -> None:
    """Check that the table of workers names their processes, and adds up to the totals."""
    rows = table.collect()
    assert len(rows) == len(pids)
    assert {(row["host"], row["pid"]) for row in rows} == {(socket.gethostname(), pid) for pid in pids}
    assert sum(row["completed"] for row in rows) == result["completed"]
    assert sum(row["expired_leases"] for row in rows) == result["expired_leases"]


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_each_file_is_processed_archived_and_reported_once(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    table, record, folder = str(tmp_path / "files"), tmp_path / "record", str(tmp_path / "archive")
    wanted = files()
    assert len(wanted) > 300
    assert (empty := {name for name, data in wanted.items() if not data}), "some __init__.py are empty"
    spark.createDataFrame([*wanted.items()], "id string, data binary").write.parquet(table)
    await queue.events.keep(count=1_000_000)
    assert load(spark, queue.name, table, url=redis_url)["added"] == len(wanted)

    async with workers(3, queue, record) as running:
        pids = {process.pid for process in running}
        await start_work(queue, len(running), record)
        for share in (4, 2):
            await until_lines(record, len(wanted) // share)
            running.pop().send_signal(signal.SIGKILL)
        early = archive(spark, queue.name, folder, url=redis_url)  # while workers run
        await until_done(queue)
        running[0].terminate()
        assert await running[0].wait() == 0
    assert redrive(spark, queue.name, where="size = 0", dry_run=True, url=redis_url)["chosen"] == len(empty)

    late = archive(spark, queue.name, folder, url=redis_url)
    kept = [event async for event in queue.events(follow=False)]
    rows = spark.read.parquet(folder).orderBy("number").select("number", "what", "id").collect()
    assert [tuple(row) for row in rows] == [(event.number, event.what, event.id) for event in kept]
    assert early["events"] + late["events"] == len(kept)

    result = report(spark, str(tmp_path / "report"), events=folder)
    counted = Counter(event.what for event in kept)
    assert counted["expired"] > 0, "the killed workers held leases"
    assert result["now"] == (await queue.counts())._asdict()
    assert result["now"] == {"waiting": 0, "leased": 0, "scheduled": 0, "dead": len(empty)}
    assert (result["added"], result["ids"]) == (len(wanted), len(wanted))
    assert result["completed"] == len(wanted) - len(empty)
    # Items that a killed worker held have used an attempt, and are not retried.
    assert (result["dead_letters"], result["retries"]) == (len(empty), counted["failed"])
    assert counted["failed"] <= len(empty)
    assert (result["expired_leases"], result["leased"]) == (counted["expired"], counted["leased"])
    # Each lease ended in one of these ways.
    ends = ("completed", "dead_letters", "retries", "expired_leases", "released")
    assert result["leased"] == sum(result[end] for end in ends)

    by_what: dict[str, set[str]] = {
        what: {row["id"] for row in rows if row["what"] == what} for what in counted
    }
    assert by_what["added"] == {*wanted}
    assert by_what["completed"] == {*wanted} - empty
    assert by_what["died"] == empty == {letter.id for letter in await queue.dead_letters.list(count=1000)}
    # Each file was processed at least once, with the right hash.
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in wanted.items() if data}
    assert dict(line.rsplit(" ", 1) for line in lines_of(record)) == hashes

    check_workers(spark.read.parquet(str(tmp_path / "report" / "workers")), result, pids)
    page = (tmp_path / "report" / PAGE).read_text()
    assert f"<dt>completed</dt><dd>{result['completed']:,}</dd>" in page
    assert f"<dt>dead letters</dt><dd>{len(empty):,}</dd>" in page
