"""Spark Connect: everything works there, or is refused at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import InvalidArgument, Item, TaskQueue, Worker
from leasequeue.errors import InvalidCall
from leasequeue.spark import add, add_task, process, task_results
from leasequeue.spark.jobs.archive import archive
from leasequeue.spark.jobs.backfill import backfill
from leasequeue.spark.jobs.load import load
from leasequeue.spark.jobs.redrive import redrive
from leasequeue.spark.jobs.report import report
from leasequeue.spark.options import server_options
from tests.spark.streaming import stream
from tests.spark.tables import names, numbered, waiting, writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from leasequeue import AsyncWorkQueue


async def test_rows_are_added_and_read(connect: SparkSession, queue: AsyncWorkQueue) -> None:
    writer(numbered(connect, 5), queue).save()
    assert (await waiting(queue)).keys() == names(5)
    items = connect.read.format("leasequeue").options(url=str(queue.url), queue=queue.name).load()
    assert {row.id for row in items.where("state = 'waiting' and id > 'i2'").collect()} == {"i3", "i4"}


async def test_add_reports_and_checks_first(connect: SparkSession, queue: AsyncWorkQueue) -> None:
    report = await asyncio.to_thread(add, numbered(connect, 5), queue.name, url=queue.url)
    assert (report.rows, report.added) == (5, 5)
    bad = connect.createDataFrame([("good", "a"), (None, "b")], "id string, data string")
    with pytest.raises(InvalidArgument, match="column 'id' of 1 row"):
        add(bad, queue.name, url=queue.url)
    assert (await waiting(queue)).keys() == names(5)


@pytest.mark.long
async def test_tasks_are_added_and_their_results_read(
    connect: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    assert queue.url is not None
    file = tmp_path / "url"
    file.write_text("redis://:secret@localhost:1")
    async with TaskQueue.from_url(queue.url, queue.name) as tasks:

        @tasks.task
        async def double(number: int) -> int:
            return 2 * number

        rows = connect.range(2).withColumnRenamed("id", "number")
        with pytest.raises(InvalidCall, match="column 'more' is no argument"):
            add_task(rows.selectExpr("number", "1 as more"), double, url=queue.url)
        assert add_task(rows, double, url=queue.url, idColumn="number").added == 2
        await Worker(tasks).drain()
        ids = rows.withColumnRenamed("number", "id")
        found = task_results(ids, double, url=queue.url).collect()
        assert sorted((row.id, row.state, row.result) for row in found) == [
            ("0", "completed", 0),
            ("1", "completed", 2),
        ]
        with pytest.raises(InvalidArgument, match="with Spark Connect, one without"):
            task_results(ids, double, urlFile=str(file))


@pytest.mark.long
async def test_tables_of_sql(connect: SparkSession, queue: AsyncWorkQueue) -> None:
    options = f"options (url '{queue.url}', queue '{queue.name}')"
    connect.sql(f"create or replace temporary view items (id string, data string) using leasequeue {options}")
    connect.sql("insert into items values ('a', 'one')")
    assert [tuple(row) for row in connect.sql("select * from items").collect()] == [("a", "one")]


@pytest.mark.long
async def test_a_stream_of_leases_is_written_by_batch(
    connect: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.add_items([Item("x", id=f"i{number}") for number in range(5)])
    folder = str(tmp_path / "done")

    def replace(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{folder}/batch={number}")

    leases = stream(connect, queue, maxItemsPerTrigger=3).writeStream.foreachBatch(replace)
    run(leases, tmp_path)
    rows = connect.read.parquet(folder).collect()
    assert {row.id for row in rows} == names(5)
    assert len({row.batch for row in rows}) == 2
    assert not any(await queue.counts()), "all are completed"


@pytest.mark.long
async def test_streams_of_events_and_into_a_queue(
    connect: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_items([Item("x", id=f"i{number}") for number in range(5)])
    events = stream(connect, queue, **{"from": "events"})
    again = events.selectExpr("concat('again-', id) id", "what data")
    target = {"url": str(queue.url), "queue": queue.name}
    run(again.writeStream.format("leasequeue").options(**target), tmp_path)
    found = await waiting(queue)
    assert {id_: data for id_, data in found.items() if id_.startswith("again")} == {
        f"again-i{number}": b"added" for number in range(5)
    }


async def test_jobs_that_add_and_requeue(
    connect: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    source = tmp_path / "rows.csv"
    source.write_text("id,data\na,one\nb,two\n")
    where: dict[str, Any] = {"url": queue.url}
    loaded = await asyncio.to_thread(load, connect, queue.name, str(source), **where)
    assert (loaded["rows"], loaded["added"]) == (2, 2)
    for lease in await queue.lease_many(2, 60):
        await queue.fail(lease, "no")
    done = await asyncio.to_thread(redrive, connect, queue.name, where="id = 'a'", **where)
    assert (done["chosen"], done["requeued"]) == (1, 1)
    filled = await asyncio.to_thread(backfill, connect, queue.name, str(source), rate=1, **where)
    assert (filled["rows"], filled["added"]) == (2, 1)


async def test_what_renames_folders_is_refused(
    connect: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    where: dict[str, Any] = {"queue": queue.name, "url": queue.url}
    output = str(tmp_path / "output")
    calls: dict[str, Callable[[], Any]] = {
        "process": lambda: process(connect, iter, output=output, schema="id string", **where),
        "archive": lambda: archive(connect, output=output, **where),
        "report": lambda: report(connect, output, **where),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidArgument, match=f"one of Spark Connect.*{name} renames folders"):
            call()
    with pytest.raises(InvalidArgument, match=r"one of Spark Connect.*process renames folders"):
        process(stream(connect, queue), iter, output=output, schema="id string")
    assert not (await asyncio.to_thread(lambda: [*tmp_path.iterdir()]))


@pytest.mark.usefixtures("connect")
def test_a_password_comes_from_the_environment_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "redis://:secret@localhost"  # noqa: S105 - no secret
    with pytest.raises(InvalidArgument, match="LEASEQUEUE_URL, set here and on the Connect server"):
        server_options(secret).__enter__()
    monkeypatch.setenv("LEASEQUEUE_URL", secret)
    with server_options(None) as given:
        assert given == {}, "the Connect server reads its own variable"


@pytest.mark.long
async def test_a_job_of_the_command_line(connect_url: str, queue: AsyncWorkQueue, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,data\na,one\n")
    job = ("load", queue.name, str(tmp_path / "rows.csv"), "--url", str(queue.url))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "leasequeue.cli", "pipeline", *job],
        env=os.environ | {"SPARK_REMOTE": connect_url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "added" in done.stdout
    assert await waiting(queue) == {"a": b"one"}


def run(writer: Any, folder: Path) -> None:
    """Run a query until no input is left."""
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
