"""Real files through a real pipeline: loaded, worked on while workers are killed, archived, reported."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import sysconfig
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leasehold.spark.jobs.archive import archive
from leasehold.spark.jobs.load import load
from leasehold.spark.jobs.redrive import redrive
from leasehold.spark.jobs.report import PAGE, report
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator

    from pyspark.sql import SparkSession

    from leasehold import AsyncWorkQueue

PROGRAM = Path(__file__).parent / "programs" / "files_program.py"
LIBRARY = Path(sysconfig.get_path("stdlib"))
#: What is not the library's own, or different from one installation to the next.
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "idlelib"}


def files() -> dict[str, bytes]:
    """The source files of the standard library, by their names."""
    return {
        str(path.relative_to(LIBRARY)): path.read_bytes()
        for path in sorted(LIBRARY.rglob("*.py"))
        if not LEFT_OUT & {*path.relative_to(LIBRARY).parts}
    }


@asynccontextmanager
async def workers(count: int, queue: AsyncWorkQueue, record: Path) -> AsyncIterator[list[Process]]:
    """Run workers; they are killed at the end of the block."""
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
    """Wait until the workers have written so many lines."""
    await eventually(f"there are {count} lines", lambda: len(lines_of(record)) >= count, within=120)


async def let_go(queue: AsyncWorkQueue, count: int, record: Path) -> None:
    """Let the workers work, as soon as each of them has leased something."""

    async def all_have_leased() -> bool:
        return len({view.holder for view in await queue.inspect("leased", count=1000)}) == count

    await until("all of them have leased", all_have_leased, within=60)
    record.touch()  # noqa: ASYNC240 - it is a file of this machine


async def until_done(queue: AsyncWorkQueue) -> None:
    """Wait until nothing but dead letters is left."""
    async with asyncio.timeout(180):
        while any((await queue.counts())[:3]):  # noqa: ASYNC110 - what others do is no event here
            await asyncio.sleep(0.05)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_files_of_the_standard_library(
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
        await let_go(queue, len(running), record)
        for share in (4, 2):
            await until_lines(record, len(wanted) // share)
            running.pop().send_signal(signal.SIGKILL)
        early = archive(spark, queue.name, folder, url=redis_url)  # while they work
        await until_done(queue)
        running[0].terminate()
        assert await running[0].wait() == 0
    assert redrive(spark, queue.name, where="size = 0", dry_run=True, url=redis_url)["chosen"] == len(empty)

    late = archive(spark, queue.name, folder, url=redis_url)
    kept = [event async for event in queue.events(follow=False)]
    rows = spark.read.parquet(folder).orderBy("number").select("number", "what", "id").collect()
    assert [tuple(row) for row in rows] == [(event.number, event.what, event.id) for event in kept]
    assert early["events"] + late["events"] == len(kept)

    told = report(spark, str(tmp_path / "report"), events=folder)
    counted = Counter(event.what for event in kept)
    assert counted["expired"] > 0, "those that were killed held leases"
    assert told["now"] == (await queue.counts())._asdict()
    assert told["now"] == {"waiting": 0, "leased": 0, "scheduled": 0, "dead": len(empty)}
    assert (told["added"], told["ids"]) == (len(wanted), len(wanted))
    assert told["completed"] == len(wanted) - len(empty)
    # Those that a killed worker held have used up an attempt, and are not tried again.
    assert (told["dead_letters"], told["retries"]) == (len(empty), counted["failed"])
    assert counted["failed"] <= len(empty)
    assert (told["expired_leases"], told["leased"]) == (counted["expired"], counted["leased"])
    # Each lease came to one of the ends that there are.
    ends = ("completed", "dead_letters", "retries", "expired_leases", "released")
    assert told["leased"] == sum(told[end] for end in ends)

    by_what: dict[str, set[str]] = {
        what: {row["id"] for row in rows if row["what"] == what} for what in counted
    }
    assert by_what["added"] == {*wanted}
    assert by_what["completed"] == {*wanted} - empty
    assert by_what["died"] == empty == {letter.id for letter in await queue.dead_letters.list(count=1000)}
    # The work itself: each file at least once, and right.
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in wanted.items() if data}
    assert dict(line.rsplit(" ", 1) for line in lines_of(record)) == hashes

    workers_told = spark.read.parquet(str(tmp_path / "report" / "workers")).collect()
    assert len(workers_told) == 3
    assert sum(row["completed"] for row in workers_told) == told["completed"]
    assert sum(row["expired_leases"] for row in workers_told) == told["expired_leases"]
    page = (tmp_path / "report" / PAGE).read_text()
    assert f"<dt>completed</dt><dd>{told['completed']:,}</dd>" in page
    assert f"<dt>dead letters</dt><dd>{len(empty):,}</dd>" in page
