"""Bulk adds: columns, each row once, and the report."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark.sql.functions as F  # noqa: N812 - its usual name
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from leasequeue import Item, ServerError
from leasequeue.queue.queue import engine_of
from leasequeue.spark import add, register
from leasequeue.spark.add.columns import OPTIONS, Columns
from leasequeue.spark.add.writers import BulkWriter, PartitionReport, add_batches
from leasequeue.spark.options import FormatOptions, QueueTarget
from leasequeue.spark.sessions import active
from tests.queue.asking import take
from tests.spark.tables import names, numbered, waiting, writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

AT = dt.datetime(2100, 1, 1, 0, 0, 0, 1500, tzinfo=dt.UTC)


async def test_an_empty_table_adds_nothing(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    report = add(numbered(spark, 0), queue.name, url=queue.url)
    assert (report.rows, report.added) == (0, 0)
    assert not any(await queue.counts())


async def test_large_data_are_sent_in_separate_requests(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = numbered(spark, 12, size=400_000).coalesce(1)
    writer(table, queue).save()
    assert {len(data) for data in (await waiting(queue)).values()} == {400_000}


async def test_existing_ids_are_skipped_and_counted(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"mine", id="i1"), Item(b"mine", id="i3")])
    report = add(numbered(spark, 10), queue.name, url=queue.url)
    assert (report.rows, report.added, report.already_there) == (10, 8, 2)
    assert [(one.rows, one.added, one.already_there) for one in report.partitions] == [(5, 3, 2), (5, 5, 0)]
    assert (await waiting(queue))["i1"] == b"mine"


async def test_the_report_is_kept_as_the_result_of_the_job(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    report = add(numbered(spark, 3), queue.name, url=queue.url)
    result = await queue.results.get(report.job)
    assert result is not None
    assert result.startswith(b"3 ")
    assert 0 < await redis.pttl(f"{queue.name}:result:{report.job}") <= 24 * 3600 * 1000
    assert not await redis.exists(f"{queue.name}:once:{report.job}")


async def test_an_id_that_is_repeated_in_the_table_is_added_once(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    twice = numbered(spark, 3_000).union(numbered(spark, 3_000))
    report = add(twice, queue.name, url=queue.url)
    assert (report.rows, report.added, report.already_there) == (6_000, 3_000, 3_000)
    assert (await queue.counts()).waiting == 3_000


async def test_options_choose_columns_of_several_types(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = spark.createDataFrame([(7, "fünf", 1)], "number int, text string, more int")
    writer(table, queue, idColumn="number", dataColumn="text").save()
    assert await waiting(queue) == {"7": "fünf".encode()}


async def test_without_a_data_column_the_row_is_json(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = spark.createDataFrame(
        [("a", 1.5, True, None, [1, 2], (3,), Decimal("1.10"), b"\x00", dt.date(2026, 1, 2), AT)],
        "id string, x double, b boolean, n int, l array<int>, s struct<y:int>, d decimal(5,2), raw binary, "
        "day date, at timestamp",
    )
    writer(table, queue).save()
    assert json.loads((await waiting(queue))["a"]) == {
        "id": "a",
        "x": 1.5,
        "b": True,
        "n": None,
        "l": [1, 2],
        "s": {"y": 3},
        "d": "1.10",
        "raw": "AA==",
        "day": "2026-01-02",
        "at": "2100-01-01T00:00:00.001500+00:00",
    }


async def test_a_map_is_a_json_object(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    """Its keys are sorted: equal maps give equal rows, and the same hash."""
    table = spark.sql(
        """select 'a' as id, map('z', 1, 'b', null) as m,
             array(map('k', struct(map('x', X'00') as inner))) as n, cast(null as map<string, int>) as none"""
    )
    writer(table, queue).save()
    (data,) = (await waiting(queue)).values()
    assert data == b'{"id":"a","m":{"b":null,"z":1},"n":[{"k":{"inner":{"x":"AA=="}}}],"none":null}'
    both = spark.sql("select map('a', 1, 'b', 2) as m union all select map('b', 2, 'a', 1)")
    report = add(both, queue.name, url=queue.url, idFrom="m")
    assert (report.rows, report.added) == (2, 1)


async def test_the_case_of_column_names_does_not_matter(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    """As in Spark. A name that is written in the same way goes first."""
    table = spark.sql("select 'a' as Id, 'data' as DATA, 0.0d as `Wait`")
    writer(table, queue, idColumn="ID", dataColumn="data", delayColumn="wAIT").save()
    writer(table.withColumn("Id", F.lit("b")), queue).save()
    assert await waiting(queue) == {"a": b"data", "b": b"data"}
    columns = Columns.chosen(
        FormatOptions({"idColumn": "ID"}, OPTIONS), StructType().add("id", "integer").add("ID", "integer")
    )
    assert columns.id == "ID"


async def test_the_hash_of_one_column_is_the_content_id(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = spark.createDataFrame([("one",), ("two",), ("one",)], "data string")
    report = add(table, queue.name, url=queue.url, idFrom="data")
    assert (report.rows, report.added) == (3, 2)
    assert (await waiting(queue)).keys() == {Item.with_content_id(text).id for text in ("one", "two")}


async def test_the_id_can_be_the_hash_of_several_columns(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    table = spark.createDataFrame([(1, "b", "data")], "a int, b string, data string")
    writer(table, queue, idFrom="a, b").save()
    assert (await waiting(queue)).keys() == {hashlib.sha256(b'{"a":1,"b":"b"}').hexdigest()}


@pytest.mark.parametrize("kind", ["int", "double", "decimal(10,4)"])
async def test_a_column_can_delay_items(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, kind: str
) -> None:
    table = spark.createDataFrame([("now", 0), ("null", None), ("later", 1000)], "id string, wait int")
    table = table.select("id", F.col("wait").cast(kind), F.lit("").alias("data"))
    before, _ = await redis.time()
    writer(table, queue, delayColumn="wait").save()
    after, _ = await redis.time()
    assert (await waiting(queue)).keys() == {"now", "null"}
    (later,) = await queue.inspect("scheduled")
    assert later.due is not None
    assert before + 1000 <= later.due <= after + 1001


async def test_a_column_can_schedule_items(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    past = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    rows = [("later", AT, ""), ("past", past, ""), ("null", None, "")]
    writer(spark.createDataFrame(rows, "id string, at timestamp, data string"), queue, atColumn="at").save()
    assert (await waiting(queue)).keys() == {"past", "null"}
    (later,) = await queue.inspect("scheduled")
    assert later.due == 4102444800.002, "rounded up to a ms: never too early"


ROWS = "id string, level int, tenant string, ttl double, data string"


async def test_columns_hold_the_priority_the_group_and_the_life_of_items(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    rows = [("a", 5, "ann", 60.0, ""), ("b", None, None, None, ""), ("c", -9, "bob", 0.5, "")]
    before, _ = await redis.time()
    columns = {"priorityColumn": "level", "groupColumn": "tenant", "expiresColumn": "ttl"}
    writer(spark.createDataFrame(rows, ROWS), queue, **columns).save()
    after, _ = await redis.time()
    views = {one.id: one for one in await queue.inspect("waiting")}
    assert {one.id: (one.priority, one.group) for one in views.values()} == {
        "a": (5, "ann"),
        "b": (0, None),
        "c": (-9, "bob"),
    }
    assert views["a"].expires is not None
    assert before + 60 <= views["a"].expires <= after + 61
    assert views["b"].expires is None


async def test_all_items_of_a_table_have_the_same_options(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    rows = spark.createDataFrame([("a", 5), ("b", None)], "id string, level int")
    add(rows, queue.name, url=queue.url, priorityColumn="level", group="ann", expiresIn=600)
    writer(rows.selectExpr("concat(id, '2') as id"), queue, priority=-1, group="bob").save()
    views = {one.id: one for one in await queue.inspect("waiting")}
    found = {one.id: (one.priority, one.group, one.expires is None) for one in views.values()}
    assert found == {
        "a": (5, "ann", False),
        "b": (0, "ann", False),
        "a2": (-1, "bob", True),
        "b2": (-1, "bob", True),
    }


@pytest.mark.parametrize(
    "job",
    [
        pytest.param("nightly", marks=pytest.mark.long),
        pytest.param("a:run", marks=pytest.mark.long),
        "nächtlich {*} [?]\n",
    ],
)
async def test_an_aborted_job_with_a_name_is_continued(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, job: str
) -> None:
    """Its first run fails at row 12; the added items are completed; its second run adds the rest."""
    await aborted(spark, queue, job)
    run = await redis.get(f"{queue.name}:once:{job}:run")
    assert isinstance(run, bytes)
    assert 6 * 86400 * 1000 < await redis.pttl(f"{queue.name}:once:{run.decode()}") <= 7 * 86400 * 1000
    assert await redis.pttl(f"{queue.name}:once:{job}:run") > 30 * 86400 * 1000, "the name outlives the run"
    assert (await waiting(queue)).keys() == names(8), "whole batches"
    for _ in range(8):
        assert await queue.complete(await take(queue))
    report = add(numbered(spark, 12), queue.name, url=queue.url, job=job)
    assert (await waiting(queue)).keys() == names(12) - names(8)
    assert (report.job, report.rows, report.added, report.already_there) == (job, 12, 12, 0)
    assert sum(one.repeated for one in report.partitions) == 8
    result = await queue.results.get(job)
    assert result is not None
    assert result.startswith(b"12 ")


async def aborted(spark: SparkSession, queue: AsyncWorkQueue, name: str) -> None:
    """Run a job that adds 8 items in two batches and fails."""
    broken = numbered(spark, 12, partitions=1).withColumn(
        "id", F.when(F.col("id") == "i11", None).otherwise(F.col("id"))
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    try:
        with pytest.raises(PySparkException, match=r"row 12 of partition 0"):
            add(broken, queue.name, check=False, url=queue.url, job=name)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


async def test_a_continued_job_with_fewer_rows_counts_them(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    await aborted(spark, queue, "nightly")
    report = add(numbered(spark, 3), queue.name, url=queue.url, job="nightly")
    assert (report.rows, report.added, report.already_there) == (3, 8, 0)


async def test_the_name_of_an_ended_job_can_be_used_again(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    for _ in range(2):
        report = add(numbered(spark, 3), queue.name, url=queue.url, job="nightly")
        assert (report.rows, report.added, report.already_there) == (3, 3, 0)
        assert not await redis.exists(f"{queue.name}:once:nightly:run")
        for _ in range(3):
            assert await queue.complete(await take(queue))


def bulk_writer(queue: AsyncWorkQueue, **options: str) -> BulkWriter:
    """Make a writer as Spark does when it plans."""
    given = {"url": queue.url or "", "queue": queue.name, **options}
    schema = StructType([StructField("id", StringType()), StructField("data", StringType())])
    return BulkWriter(given, schema, overwrite=False)


def rows_of(count: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition."""
    yield pa.RecordBatch.from_pylist([{"id": f"i{n}", "data": "x"} for n in range(count)])


@pytest.mark.parametrize("options", [{}, {"job": "nightly"}], ids=["no name", "a name"])
async def test_a_task_that_outlives_its_job_adds_nothing(
    queue: AsyncWorkQueue, redis: Redis, options: dict[str, str]
) -> None:
    """A copy was killed too late, or its executor was considered lost."""
    job = await asyncio.to_thread(bulk_writer, queue, **options)
    message = await asyncio.to_thread(job.write, rows_of(5))
    await asyncio.to_thread(job.commit, [message])
    for _ in range(5):
        assert await queue.complete(await take(queue))
    late = await asyncio.to_thread(job.write, rows_of(7))
    assert isinstance(late, PartitionReport)
    assert (late.rows, late.added) == (7, 0)
    assert not any(await queue.counts())
    assert 23 * 3600 * 1000 < await redis.pttl(f"{queue.name}:once:{job.run}:ended") <= 24 * 3600 * 1000
    newer = await asyncio.to_thread(bulk_writer, queue, **options)
    message = await asyncio.to_thread(newer.write, rows_of(5))
    assert isinstance(message, PartitionReport)
    assert message.added == 5, "another job, with or without the same name"
    late = await asyncio.to_thread(job.write, rows_of(7))
    assert isinstance(late, PartitionReport)
    assert (late.rows, late.added) == (7, 0)


async def test_the_later_of_two_jobs_of_one_name_fails(queue: AsyncWorkQueue) -> None:
    """It may have missed rows, so it must not succeed."""
    first = await asyncio.to_thread(bulk_writer, queue, job="nightly")
    second = await asyncio.to_thread(bulk_writer, queue, job="nightly")
    await asyncio.to_thread(first.commit, [await asyncio.to_thread(first.write, rows_of(5))])
    message = await asyncio.to_thread(second.write, rows_of(7))
    with pytest.raises(ServerError, match="another job named 'nightly' ran at the same time"):
        await asyncio.to_thread(second.commit, [message])
    result = await queue.results.get("nightly")
    assert result is not None
    assert result.startswith(b"5 ")


async def test_rows_are_added_from_any_thread(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    report = await asyncio.to_thread(add, numbered(spark, 3), queue.name, url=queue.url)
    assert report.added == 3
    await asyncio.to_thread(in_a_new_session, spark, queue)
    assert (await queue.counts()).waiting == 5


async def test_a_thread_that_registers_can_write(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    def plain() -> None:
        writer(spark.range(3).selectExpr("string(id) id"), queue).save()

    def registered() -> bool:
        assert SparkSession.getActiveSession() is None
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            plain()
        register(spark)
        plain()
        return SparkSession.getActiveSession() is not None

    with ThreadPoolExecutor(1) as new_thread:
        assert await asyncio.get_running_loop().run_in_executor(new_thread, registered)
    assert (await waiting(queue)).keys() == {"0", "1", "2"}


def in_a_new_session(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    """Add rows of a session that is not active in this thread."""
    assert SparkSession.getActiveSession() is None, "as it was before"
    other = spark.newSession()
    with active(spark):
        assert add(numbered(other, 5), queue.name, url=queue.url).added == 2
        (same,) = spark.range(1).collect()
        assert same.id == 0


async def test_a_second_run_of_a_partition_adds_nothing(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    """Like a speculative task: the same partition of the same job, with completions in between."""
    table = numbered(spark, 2_500, partitions=1)
    batches = table.toArrow().to_batches(max_chunksize=700)
    columns = Columns.chosen(FormatOptions({}, ()), table.schema)
    assert queue.url is not None
    target = QueueTarget(queue.name, queue.url)
    first = add_batches(batches, columns, target, "job", 10)
    for lease in await queue.lease_many(1000, 60):
        assert await queue.complete(lease)
    second = add_batches(batches, columns, target, "job", 10)
    assert (first.added, second.added, second.repeated, second.already_there) == (2_500, 0, 2_500, 0)
    assert (await queue.counts()).total == 1_500
    assert await engine_of(queue).bulk.end_run(b"job", ended_ms=1000) == 2_500


async def test_two_parallel_tasks_add_each_item_once(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    """Both halves of the table hold all rows and run in parallel."""
    twice = numbered(spark, 20_000, partitions=1).union(numbered(spark, 20_000, partitions=1))
    report = add(twice, queue.name, url=queue.url)
    assert (report.rows, report.added) == (40_000, 20_000)
    assert sum(one.added for one in report.partitions) == 20_000
    assert (await queue.counts()).waiting == 20_000
