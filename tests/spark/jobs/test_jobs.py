"""Jobs: their effects on queues and files, and their errors."""

from __future__ import annotations

import gzip
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from typer.testing import CliRunner

from leasequeue import InvalidArgument, Item, ServerError
from leasequeue.cli.pipeline import app
from leasequeue.errors import NoEventsKept
from leasequeue.spark import register
from leasequeue.spark.jobs.archive import archive
from leasequeue.spark.jobs.backfill import _ROW, _timed, backfill
from leasequeue.spark.jobs.load import load
from leasequeue.spark.jobs.redrive import redrive
from leasequeue.spark.jobs.report import report
from tests.queue.asking import take
from tests.spark.tables import numbered, waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from leasequeue.views import Event
    from tests.queue.fixtures import MakeQueue

CSV = "Id;text\na;one\nb;two\n"


async def kill(queue: AsyncWorkQueue, errors: dict[str, str]) -> None:
    """Make dead letters with these errors."""
    await queue.add_items([Item(f"<{id_}>", id=id_) for id_ in errors])
    for _ in errors:
        lease = await take(queue)
        await queue.fail(lease, errors[lease.id])


# ---------------------------------------------------------------------------------------------------- load


async def test_load_uses_the_given_format_and_columns(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    given: dict[str, Any] = {"format": "csv", "option": ["sep=;"], "id": "Id", "url": redis_url}
    result = load(spark, queue.name, str(tmp_path / "rows.csv"), data="text", **given)
    assert result == {"queue": queue.name, "rows": 2, "added": 2, "already_there": 0}
    assert await waiting(queue) == {"a": b"one", "b": b"two"}
    (tmp_path / "rows.csv").write_text(CSV + "c;three\n")
    result = load(spark, queue.name, str(tmp_path / "rows.csv"), **given)
    assert (result["added"], result["already_there"]) == (1, 2)
    assert (await waiting(queue))["c"] == b'{"Id":"c","text":"three"}'


async def test_load_of_json_parquet_and_tables(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text('{"data": "1"}\n{"data": "2"}\n{"data": "1"}\n')
    result = load(spark, queue.name, str(tmp_path / "rows.json"), id_from="data", url=redis_url)
    assert (result["rows"], result["added"], result["already_there"]) == (3, 2, 1)
    numbered(spark, 10).write.parquet(str(tmp_path / "rows"))
    assert load(spark, queue.name, str(tmp_path / "rows"), url=redis_url)["added"] == 10
    numbered(spark, 12).createOrReplaceTempView("letters")
    assert load(spark, queue.name, "letters", format="table", url=redis_url)["added"] == 2
    (tmp_path / "more.CSV.gz").write_bytes(gzip.compress(b"id,data\nx,1\ny,2\n"))
    assert load(spark, queue.name, str(tmp_path / "more.CSV.gz"), url=redis_url)["added"] == 2


# ------------------------------------------------------------------------------------------------- backfill


async def scheduled(redis: Redis, name: str) -> dict[str, float]:
    """Return the due time (s) of each scheduled id, in order."""
    rows: Any = await redis.zrange(f"{name}:scheduled", 0, -1, withscores=True)
    return {id_.decode(): ms / 1000 for id_, ms in rows}


async def test_backfill_schedules_rows_at_the_rate_and_in_order(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    numbered(spark, 100, partitions=3).write.parquet(str(tmp_path / "rows"))
    start = datetime.fromtimestamp(int(time.time()) + 1000, UTC)
    given: dict[str, Any] = {"rate": 4.0, "start": start.isoformat(), "url": redis_url}
    result = backfill(spark, queue.name, str(tmp_path / "rows"), order_by="id", **given)
    assert (result["rows"], result["added"]) == (100, 100)
    assert datetime.fromisoformat(result["first_due"]) == start
    assert datetime.fromisoformat(result["last_due"]).timestamp() == start.timestamp() + 99 / 4
    due = await scheduled(redis, queue.name)
    assert [*due] == sorted(f"i{n}" for n in range(100))
    assert [at - start.timestamp() for at in due.values()] == [n / 4 for n in range(100)]
    result = backfill(spark, queue.name, str(tmp_path / "rows"), **given)
    assert (result["added"], result["already_there"]) == (0, 100)


async def test_backfill_starts_now_and_keeps_the_order_of_a_file(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    rows = "".join(f'{{"id": "i{n}", "n": {n}}}\n' for n in range(50))
    (tmp_path / "rows.json").write_text(rows)
    before = time.time()
    result = backfill(spark, queue.name, str(tmp_path / "rows.json"), rate=0.1, format="json", url=redis_url)
    assert before <= datetime.fromisoformat(result["first_due"]).timestamp() + 0.001
    due = [*await scheduled(redis, queue.name)]
    # The first is due immediately.
    assert due == [f"i{n}" for n in range(50)][-len(due) :]
    assert sum(await queue.counts()) == 50
    found = await queue.find("i7")
    assert found is not None
    assert found.data == b'{"id":"i7","n":7}'


async def test_backfill_schedules_by_the_numbers_of_the_plan_that_counted_the_rows(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.json").write_text("".join(f'{{"id": "i{n:02}"}}\n' for n in range(50)))
    start = datetime.fromtimestamp(int(time.time()) + 1000, UTC)
    setting = "spark.sql.files.maxPartitionBytes"

    def replan(step: str) -> None:
        if step.startswith("loading"):
            spark.conf.set(setting, 200)  # queries from now on divide the file into more partitions

    try:
        given: dict[str, Any] = {"rate": 1.0, "start": start.isoformat(), "url": redis_url}
        backfill(spark, queue.name, str(tmp_path / "rows.json"), progress=replan, **given)
    finally:
        spark.conf.unset(setting)
    due = await scheduled(redis, queue.name)
    assert due == {f"i{n:02}": start.timestamp() + n for n in range(50)}


def test_a_row_without_a_number_ends_a_backfill(spark: SparkSession) -> None:
    rows = spark.range(1).selectExpr("id", f"cast(null as long) as {_ROW}")
    with pytest.raises(PySparkException, match="other partitions than when they were counted"):
        _timed(rows, 0, 1).collect()


async def test_backfill_and_load_encode_a_row_alike(
    spark: SparkSession, queue: AsyncWorkQueue, make_queue: MakeQueue, redis_url: str, tmp_path: Path
) -> None:
    rows = spark.sql(
        "select concat('i', id) as id, 1.5e20D as big, 12.30BD as exact, X'00FF' as raw, 'ü/' as text, "
        "timestamp'2030-01-31 09:00:00.5' as at, date'2030-01-31' as day, cast(null as string) as none, "
        "array(1, null) as list, named_struct('a', 1, 'c', true) as inner, 7 as `dotted.name` from range(3)"
    )
    rows.write.parquet(str(tmp_path / "rows"))
    load(spark, queue.name, str(tmp_path / "rows"), url=redis_url)
    other = make_queue(name=f"{queue.name}-other")
    backfill(spark, other.name, str(tmp_path / "rows"), rate=0.001, url=redis_url)
    for item_id in ("i0", "i1", "i2"):
        loaded, filled = await queue.find(item_id), await other.find(item_id)
        assert loaded is not None
        assert filled is not None
        assert loaded.data == filled.data
        assert json.loads(loaded.data or b"")["none"] is None


# -------------------------------------------------------------------------------------------------- redrive


async def test_redrive_requeues_the_dead_letters_that_match(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str
) -> None:
    await kill(queue, {"a": "timeout", "b": "no such letter", "c": "timeout", "d": "timeout"})
    await queue.add_item(Item(b"new", id="d"))
    chosen = "error = 'timeout' and data <> '<c>'"
    result = redrive(spark, queue.name, where=chosen, dry_run=True, url=redis_url)
    assert result == {"queue": queue.name, "chosen": 2, "dry_run": True}
    assert (await queue.counts()).dead == 4
    result = redrive(spark, queue.name, where=chosen, url=redis_url)
    # `d` cannot be requeued, as its id was added again.
    assert result == {"queue": queue.name, "chosen": 2, "requeued": 1, "stayed": 1, "already_there": 1}
    assert await waiting(queue) == {"a": b"<a>", "d": b"new"}
    assert {letter.id for letter in await queue.dead_letters.list()} == {"b", "c", "d"}
    result = redrive(spark, queue.name, url=redis_url)
    assert (result["chosen"], result["requeued"], result["already_there"]) == (3, 2, 1)
    assert {letter.id for letter in await queue.dead_letters.list()} == {"d"}
    await queue.complete_many(await queue.lease_many(10, 60))
    assert redrive(spark, queue.name, url=redis_url)["requeued"] == 1
    assert await waiting(queue) == {"d": b"<d>"}


async def test_redrive_runs_in_a_session_whose_timestamps_have_no_zone(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str
) -> None:
    await kill(queue, {"a": "timeout", "b": "an error"})
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        result = redrive(spark, queue.name, where="error = 'timeout' and data = '<a>'", url=redis_url)
    finally:
        spark.conf.unset("spark.sql.timestampType")
    assert result["requeued"] == 1


INVALID: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    (load, {"source": "nothing"}, "PATH_NOT_FOUND"),
    (load, {"id": "identity"}, "idColumn"),
    (load, {"id": "id", "id_from": "data"}, "no idColumn when there is idFrom"),
    (load, {"option": ["sep"]}, "name=value"),
    (load, {"format": "table"}, "rows"),
    (load, {"url": "redis://localhost:1"}, "localhost:1"),
    (backfill, {"rate": 0.0}, "above 0"),
    (backfill, {"rate": float("nan")}, "above 0"),
    (backfill, {"rate": 1e-12}, "at most .* days"),
    (backfill, {"rate": 1.0, "start": "tomorrow"}, "2030-01-31T09:00Z"),
    (backfill, {"rate": 1.0, "start": "2030-01-31T09:00"}, "with a zone"),
    (backfill, {"rate": 1.0, "order_by": "age"}, "age"),
    (redrive, {"where": "= no condition"}, "PARSE_SYNTAX_ERROR"),
    (redrive, {"where": "eror = 'x'"}, "UNRESOLVED_COLUMN"),
    (redrive, {"where": "data"}, "FILTER_NOT_BOOLEAN"),
]


async def test_a_job_with_invalid_arguments_changes_nothing(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    numbered(spark, 3).write.parquet(str(tmp_path / "rows"))
    await kill(queue, {"a": "timeout"})
    for job, arguments, message in INVALID:
        given = {"url": redis_url} | arguments
        if job is not redrive:
            given["source"] = str(tmp_path / given.get("source", "rows"))
        with pytest.raises((PySparkException, InvalidArgument, ServerError), match=message):
            job(spark, queue.name, **given)
    assert await queue.counts() == (0, 0, 0, 1)


# -------------------------------------------------------------------------------------------------- archive


def archived(spark: SparkSession, folder: Path) -> list[tuple[int, str, str]]:
    """Return all events of an archive."""
    rows = spark.read.parquet(str(folder)).orderBy("number").collect()
    assert all(row["date"] == row["at"].date() for row in rows)
    return [(row["number"], row["what"], row["id"]) for row in rows]


async def kept(queue: AsyncWorkQueue) -> list[tuple[int, str, str]]:
    """Return all events on the server."""
    events: list[Event] = [event async for event in queue.events(follow=False)]
    return [(event.number, event.what, event.id) for event in events]


async def test_archive_continues_where_it_stopped_and_replaces_a_batch_that_runs_again(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_items([Item(f"{n}", id=f"{n}") for n in range(25)])
    folder = tmp_path / "archive"
    result = archive(spark, queue.name, str(folder), batch=10, url=redis_url)
    first = (await kept(queue))[0][0]
    assert result == {
        "queue": queue.name,
        "events": 25,
        "batches": 3,
        "first": first,
        "last": first + 24,
    }
    assert archived(spark, folder) == await kept(queue)
    commits = folder / "_checkpoint" / "commits"
    last = max(path.name for path in commits.iterdir() if path.name.isdigit())
    for name in (last, f".{last}.crc"):
        (commits / name).unlink()  # as if killed before it was written
    (folder / "_batch-00000009").mkdir()
    for _ in range(5):
        await queue.complete(await take(queue))
    assert archive(spark, queue.name, str(folder), batch=10, url=redis_url)["events"] == 5 + 10
    assert archived(spark, folder) == await kept(queue)
    assert not (folder / "_batch-00000009").exists()


async def test_an_archive_belongs_to_one_queue_and_checkpoint(
    spark: SparkSession, make_queue: MakeQueue, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_item(Item(b"", id="x"))
    folder = str(tmp_path / "archive")
    archive(spark, queue.name, folder, url=redis_url)
    with pytest.raises(InvalidArgument, match="with the same checkpoint"):
        archive(spark, queue.name, folder, checkpoint=str(tmp_path / "new"), url=redis_url)
    assert archive(spark, queue.name, folder, url=redis_url)["events"] == 0
    other = make_queue(name=f"{queue.name}-other")
    await other.events.keep(count=1000)
    with pytest.raises(PySparkException, match=queue.name):
        archive(spark, other.name, folder, url=redis_url)
    assert len(archived(spark, tmp_path / "archive")) == 1


async def test_archive_and_report_need_a_queue_with_events(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "output")
    with pytest.raises(PySparkException, match="keeps no events"):
        archive(spark, queue.name, output, url=redis_url)
    with pytest.raises(NoEventsKept):
        report(spark, output, queue=queue.name, url=redis_url)
    await queue.events.keep(count=10)
    with pytest.raises(InvalidArgument, match="one that has events"):
        report(spark, str(tmp_path / "report"), queue=queue.name, url=redis_url)
    await queue.add_item(Item(b"", id="x"))
    result = report(spark, str(tmp_path / "report"), queue=queue.name, url=redis_url)
    assert (result["events"], result["now"]) == (1, (await queue.counts())._asdict())


async def test_jobs_register_the_format_with_the_session_that_they_get(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await kill(queue, {"a": "timeout"})
    calls: dict[str, Callable[[SparkSession], dict[str, Any]]] = {
        "archive": lambda one: archive(one, queue.name, str(tmp_path / "archive"), url=redis_url),
        "report": lambda one: report(one, str(tmp_path / "report"), queue=queue.name, url=redis_url),
        "redrive": lambda one: redrive(one, queue.name, url=redis_url),
    }
    try:
        for name, call in calls.items():
            assert call(spark.newSession()), name
    finally:
        register(spark)  # the active session of this thread again
    assert await queue.counts() == (1, 0, 0, 0)


async def test_lost_events_end_an_archive_unless_allowed(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, redis_url: str, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    await queue.add_items([Item(f"{n}", id=f"{n}") for n in range(10)])
    folder = str(tmp_path / "archive")
    archive(spark, queue.name, folder, url=redis_url)
    await queue.add_items([Item(f"{n}", id=f"{n}") for n in range(10, 20)])
    await redis.xtrim(f"{queue.name}:events", maxlen=5, approximate=False)
    with pytest.raises(PySparkException, match="no longer kept"):
        archive(spark, queue.name, folder, url=redis_url)
    result = archive(spark, queue.name, folder, allow_loss=True, url=redis_url)
    assert result["events"] == 5
    assert len(archived(spark, tmp_path / "archive")) == 15


@pytest.mark.usefixtures("spark")
def test_a_command_that_fails_says_why_in_one_line_and_exits_accordingly(
    redis_url: str, tmp_path: Path
) -> None:
    def failed(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["load", "q", *arguments])
        return result.exit_code, result.stderr.splitlines()[-1]

    code, line = failed("nothing-there", "--url", redis_url)
    assert (code, "PATH_NOT_FOUND" in line) == (1, True)
    (tmp_path / "rows.csv").write_text(CSV)
    rows = (str(tmp_path / "rows.csv"), "--format", "csv")
    code, line = failed(*rows, "--url", redis_url)
    assert code == 2
    assert line.endswith("expected --id or --id-from, as there is no column 'id'")
    code, line = failed(*rows, "--id", "Id;text", "--url", "redis://localhost:1")
    assert (code, "localhost:1" in line) == (5, True)


@pytest.mark.usefixtures("spark")
async def test_a_command_prints_the_report_of_its_job(
    queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text(CSV)
    arguments = ["load", queue.name, str(tmp_path / "rows.csv"), "--option", "sep=;", "--id", "Id", "--json"]
    result = CliRunner().invoke(app, arguments, env={"LEASEQUEUE_URL": redis_url})
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"queue": queue.name, "rows": 2, "added": 2, "already_there": 0}
    assert "loading" in result.stderr
    assert sorted(await waiting(queue)) == ["a", "b"]
