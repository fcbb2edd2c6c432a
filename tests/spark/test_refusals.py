"""Invalid options, rows, queues and checkpoints: errors on the driver, at plan time where possible."""

from __future__ import annotations

import asyncio
import math
import os
import re
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from leasequeue import InvalidArgument
from leasequeue.spark import add
from leasequeue.spark.add.columns import Columns
from leasequeue.spark.add.writers import WRITE_OPTIONS as OPTIONS
from leasequeue.spark.add.writers import BulkWriter, PartitionReport, StreamWriter, add_batches
from leasequeue.spark.options import FormatOptions, QueueTarget
from leasequeue.spark.portal import check_server
from leasequeue.spark.read.leases import LeasesReader
from leasequeue.spark.schema import EVENTS, ITEMS
from leasequeue.spark.source import LeasequeueSource
from tests.faults.cluster_nodes import cluster, kind, nodes, port_of
from tests.spark.read.test_leases import fill, nothing_left
from tests.spark.streaming import drained, stream
from tests.spark.tables import names, numbered, writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from redis.asyncio import Redis, RedisCluster

    from leasequeue import AsyncWorkQueue

__all__ = ["cluster", "kind", "nodes"]

#: In messages of failed tasks, but not of a failed plan.
IN_A_TASK = "stage failure"


def refused(df: DataFrame, queue: AsyncWorkQueue, /, **options: Any) -> str:
    """Write a table that is refused before any task runs, and return the message on the driver."""
    with pytest.raises(PySparkException) as raised:
        writer(df, queue, **options).save()
    assert IN_A_TASK not in str(raised.value)
    return str(raised.value)


#: The columns of a table.
TABLE = StructType(
    [
        StructField("id", StringType()),
        StructField("data", BinaryType()),
        StructField("wait", DoubleType()),
        StructField("at", TimestampType()),
        StructField("nested", StructType().add("l", ArrayType(StructType().add("x", DoubleType())))),
        StructField("map", MapType(StringType(), ArrayType(DoubleType()))),
        StructField("pairs", MapType(IntegerType(), StringType())),
    ]
)


def table(*names: str) -> StructType:
    """Choose some of these columns."""
    return StructType([field for field in TABLE if field.name in names])


def located(queue: AsyncWorkQueue, options: dict[str, str]) -> dict[str, str]:
    """Add the options that locate the queue, unless they are given."""
    return {"url": str(queue.url), "queue": queue.name} | options


# --------------------------------------------------------------------------------- options, columns, modes

TWICE = StructType().add("ID", StringType()).add("Id", StringType())
LOCAL = table("id").add("at", TimestampNTZType())


#: What is asked of Spark, a schema and options that it cannot be done with, and what the error names.
REFUSED = {
    "write": [
        (TABLE, {"idColumn": "idd"}, "idColumn"),
        (TABLE, {"idColumn": "wait"}, "idColumn"),
        (TABLE, {"idFrom": "data,missing"}, "idFrom"),
        (TABLE, {"idFrom": "data,pairs"}, "idFrom"),
        (TABLE, {"idFrom": "data", "idColumn": "id"}, "idColumn"),
        (TABLE, {"dataColumn": "wait"}, "dataColumn"),
        (TABLE, {"delayColumn": "id"}, "delayColumn"),
        (TABLE, {"atColumn": "wait"}, "atColumn"),
        (TABLE, {"atColumn": "at", "delayColumn": "wait"}, "not both"),
        (TABLE, {"priorityColumn": "wait"}, "priorityColumn: got 'wait double', expected a whole number"),
        (TABLE, {"groupColumn": "wait"}, "groupColumn: got 'wait double', expected a string"),
        (TABLE, {"expiresColumn": "id"}, "expiresColumn: got 'id string', expected a number of seconds"),
        (TABLE, {"priority": "10"}, "priority: got '10', expected a whole number from -9 to 9"),
        (TABLE, {"priority": "high"}, "priority: got 'high'"),
        (TABLE, {"shards": "0"}, "shards: got '0', expected a whole number from 1 to 256"),
        (TABLE, {"shards": "4", "shardBy": "name"}, "shard_by: got 'name', expected 'id' or 'group'"),
        (TABLE, {"shardBy": "group"}, "shardBy: got 'group', expected the option shards beside it"),
        (TABLE, {"group": "*"}, "group: got '\\*'"),
        (TABLE, {"expiresIn": "0"}, "expiresIn: got 0.0, expected seconds"),
        (TABLE, {"expiresIn": "soon"}, "expiresIn: got 'soon'"),
        (TABLE, {"groupColumn": "id", "group": "a"}, "no such column when all rows have the same"),
        (TABLE, {"expiresColumn": "wait", "expiresIn": "1"}, "no such column when all rows have the same"),
        (TABLE, {"idColum": "id"}, "did you mean 'idColumn'"),
        (TABLE, {"queue": ""}, "queue"),
        (TABLE, {"queue": "a:item"}, "queue"),
        (TABLE, {"job": "x" * 201}, "job"),
        (TABLE, {"retryTimeout": "soon"}, "retryTimeout"),
        (TABLE, {"url": "redis://:secret@localhost"}, "urlEnv or urlFile"),
        (TABLE, {"url": "redis://localhost?pass%77ord=secret"}, "urlEnv or urlFile"),
        (TABLE, {"url": "http://localhost"}, "url"),
        (TABLE, {"url": "redis://localhost?foo=bar"}, "'foo'"),
        (TABLE, {"url": "", "urlEnv": "UNSET_VARIABLE"}, "before Spark was started"),
        (table("wait"), {}, "no column 'id'"),
        (table("id", "pairs"), {}, "to_json"),
        (TWICE, {}, "ID and Id"),
        (LOCAL, {"atColumn": "at"}, "has no time zone"),
    ],
    "read": [
        (StructType().add("missing", StringType()), {}, "schema: got 'missing'"),
        (StructType().add("size", StringType()), {}, "schema: got 'size string'"),
        (ITEMS, {"partitions": "0"}, "partitions"),
        (ITEMS, {"idColumn": "id"}, "idcolumn"),
        (EVENTS, {"from": "events", "maxRows": "5"}, "maxrows"),
        (ITEMS, {"from": "there"}, "items or events"),
        (ITEMS, {"mayBeMissing": "yes"}, "true or false"),
    ],
    "stream": [
        (ITEMS, {"maxRows": "1"}, "did you mean 'maxItemsPerTrigger'"),
        (ITEMS, {"maxRows": "1", "from": "events"}, "did you mean 'maxEventsPerTrigger'"),
        (ITEMS, {"maxItemsPerTrigger": "0"}, "maxItemsPerTrigger"),
        (ITEMS, {"leaseTime": "soon"}, "leaseTime"),
        (ITEMS, {"url": "redis://user:secret@localhost"}, "urlEnv or urlFile"),
        (EVENTS, {"from": "events", "startingFrom": "now"}, "earliest or latest"),
    ],
    "stream of writes": [
        (TABLE, {"idColumn": "key"}, "one of the columns id, data"),
        (TABLE, {"dateColumn": "id"}, "did you mean 'dataColumn'"),
        (TABLE, {"query": "letters"}, "got 'query', expected one of"),
        (TABLE, {"dataColumn": "wait"}, "bytes or a string"),
        (TABLE, {"groupColumn": "wait"}, "groupColumn: got 'wait double', expected a string"),
    ],
}


@pytest.mark.parametrize(
    ("what", "schema", "options", "named"),
    [(what, *one) for what, cases in REFUSED.items() for one in cases],
    ids=lambda value: "" if isinstance(value, StructType) else None,
)
async def test_what_cannot_be_used_is_an_error_of_the_driver(
    queue: AsyncWorkQueue, what: str, schema: StructType, options: dict[str, str], named: str
) -> None:
    """Writers and readers are what Spark makes on the driver when it plans a query."""
    given = located(queue, options)
    make: dict[str, Callable[[], object]] = {
        "write": lambda: BulkWriter(given, schema, overwrite=False),
        "read": lambda: LeasequeueSource(given).reader(schema),
        "stream": lambda: LeasequeueSource(given).streamReader(schema),
        "stream of writes": lambda: StreamWriter(given, schema, overwrite=False),
    }
    with pytest.raises(InvalidArgument, match=named) as raised:
        await asyncio.to_thread(make[what])
    assert "secret" not in str(raised.value)


def test_a_stream_with_a_wrong_option_is_not_loaded(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    for options in ({"maxOffsetsPerTrigger": "1"}, {"url": "redis://user:secret@localhost"}):
        with pytest.raises(AnalysisException) as caught:
            stream(spark, queue, **options)
        assert "secret" not in str(caught.value)


async def test_an_invalid_option_ends_a_query_before_any_task_runs(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    assert "idColumn: got 'idd'" in refused(numbered(spark, 3), queue, idColumn="idd")
    double = spark.sql("select 'a' as id, 'b' as id")
    assert "columns of different names" in refused(double, queue)
    assert not any(await queue.counts())


async def test_modes_other_than_append_are_refused(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    with pytest.raises(AnalysisException, match="other clients use the items of a queue"):
        writer(numbered(spark, 3), queue).mode("overwrite").save()
    for mode in ("ignore", "error"):
        with pytest.raises(AnalysisException, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
            writer(numbered(spark, 3), queue).mode(mode).save()
    assert not any(await queue.counts())


# ---------------------------------------------------------------------------------------------------- rows


def added(queue: AsyncWorkQueue, batch: pa.Table, schema: StructType, **options: str) -> PartitionReport:
    """Add rows as a task does."""
    columns = Columns.chosen(FormatOptions(options, OPTIONS), schema)
    return add_batches(batch.to_batches(), columns, QueueTarget(queue.name, str(queue.url)), "job", 10)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"id": [""]}, "column 'id', row 1 of partition 0"),
        ({"id": ["a", "ü" * 257]}, "column 'id', row 2 of partition 0"),
        ({"id": ["a"], "data": [None]}, "column 'data', row 1 of partition 0, id 'a'"),
        ({"id": ["a"], "wait": [math.nan]}, "column 'wait', row 1 of partition 0, id 'a'"),
        (
            {"id": ["a", "b"], "nested": [None, {"l": [{"x": 1.0}, {"x": -math.inf}]}]},
            "column 'nested.l[1].x', row 2 of partition 0, id 'b'",
        ),
        ({"id": ["a"], "map": [[("k", [math.nan])]]}, "column 'map.k[0]', row 1 of partition 0, id 'a'"),
        *(
            ({"id": ["a", "b"], "data": [b"", b""], "wait": [0.0, wait]}, "column 'wait', row 2")
            for wait in (-1.0, math.nan, math.inf, 30 * 86400 + 1.0)
        ),
    ],
)
async def test_a_batch_with_a_row_that_cannot_be_an_item_adds_nothing(
    queue: AsyncWorkQueue, values: dict[str, list[Any]], said: str
) -> None:
    schema = table(*values)
    batch = pa.table(values, to_arrow_schema(schema))
    options = {"delayColumn": "wait"} if "data" in values and "wait" in values else {}
    with pytest.raises(InvalidArgument, match=re.escape(said)):
        await asyncio.to_thread(added, queue, batch, schema, **options)
    assert not any(await queue.counts())


@pytest.mark.parametrize("more", [0, 1])
async def test_the_largest_data_are_added_and_larger_ones_refused(queue: AsyncWorkQueue, more: int) -> None:
    schema = table("id", "data")
    batch = pa.table({"id": ["a", "ü" * 256], "data": [b"", bytes((64 << 20) + more)]})
    if more:
        with pytest.raises(InvalidArgument, match=r"'data', row 2 of .*at most 67,108,864 bytes"):
            await asyncio.to_thread(added, queue, batch, schema)
        assert not any(await queue.counts()), "not even the row before it"
    else:
        assert (await asyncio.to_thread(added, queue, batch, schema)).added == 2
        assert [(view.id, view.size) for view in await queue.inspect(data=False)] == [
            ("a", 0),
            ("ü" * 256, 64 << 20),
        ]


# ------------------------------------------------------------------------------ addresses, servers, queues


@pytest.mark.parametrize(
    "url",
    ["redis://user:s3cr3tpw@127.0.0.1:notaport/0", "foo://user:s3cr3tpw@host", "redis://u:s3c[r3tpw@host"],
)
async def test_an_invalid_url_is_shown_without_its_password(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path, url: str
) -> None:
    place = tmp_path / "url"
    place.write_text(url)
    df = numbered(spark, 3)
    errors: list[BaseException] = []
    with pytest.raises(InvalidArgument, match="url: got") as typed:
        add(df, queue.name, urlFile=str(place), check=False)
    errors.append(typed.value)
    if url.startswith("foo"):
        with pytest.raises(PySparkException, match="url: got") as raised:
            df.write.format("leasequeue").options(urlFile=str(place), queue=queue.name).mode("append").save()
        errors.append(raised.value)
    for error in errors:
        trace = "".join(traceback.TracebackException.from_exception(error).format())
        assert "s3c" not in trace
        assert "r3tpw" not in trace


async def test_add_reads_the_current_environment_of_the_driver(
    spark: SparkSession, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark's workers have the environment that Spark was started with."""
    assert queue.url is not None
    table = numbered(spark, 3)
    monkeypatch.setenv("SET_LATER", queue.url)
    assert "before Spark was started" in refused(table, queue, url="", urlEnv="SET_LATER")
    assert add(table, queue.name, urlEnv="SET_LATER").added == 3
    monkeypatch.setenv("LEASEQUEUE_URL", queue.url)
    assert add(table, queue.name).already_there == 3
    # A URL with a login is passed in a file, which is removed afterwards.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scheme, _, rest = queue.url.partition("://")
    monkeypatch.setenv("SET_LATER", f"{scheme}://default:@{rest}")
    assert add(table, queue.name, urlEnv="SET_LATER").already_there == 3
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - of a coroutine


async def test_a_password_is_passed_in_a_file_or_a_variable(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue.url is not None
    place = tmp_path / "url"
    place.write_text(f"{queue.url}\n")
    df = numbered(spark, 3)
    df.write.format("leasequeue").options(urlFile=str(place), queue=queue.name).mode("append").save()
    assert (await queue.counts()).waiting == 3
    monkeypatch.setenv("QUEUE_URL", "redis://:secret@localhost")
    target = FormatOptions({"urlEnv": "QUEUE_URL", "queue": "q"}, ()).target()
    assert "secret" not in repr(target)
    with pytest.raises(InvalidArgument, match="a file on the driver"):
        FormatOptions({"urlFile": str(tmp_path / "none"), "queue": "q"}, ()).target()
    with pytest.raises(InvalidArgument, match="one of them"):
        FormatOptions({"urlFile": "x", "urlEnv": "y", "queue": "q"}, ()).target()


async def test_a_server_that_does_not_answer_ends_the_query(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    assert "ConnectionLost" in refused(numbered(spark, 3), queue, url="redis://127.0.0.1:1")
    reader = spark.read.format("leasequeue").options(url="redis://127.0.0.1:1", queue="q")
    with pytest.raises(PySparkException, match="ConnectionLost") as raised:
        reader.load().collect()
    assert IN_A_TASK not in str(raised.value)


async def test_a_key_of_another_type_ends_the_query(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await redis.set(f"{queue.name}:queue", "a string")
    assert "WrongKeyType" in refused(numbered(spark, 3), queue)


async def test_a_queue_in_a_newer_format_ends_the_query(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    await redis.set(f"{queue.name}:too_new_for:1", "2 0.2.0")
    said = refused(numbered(spark, 3), queue)
    assert "FormatTooNew" in said
    assert "has format 2, set by leasequeue 0.2.0. This is leasequeue" in said
    with pytest.raises(PySparkException, match="FormatTooNew"):
        spark.read.format("leasequeue").options(url=queue.url, queue=queue.name).load().collect()
    with pytest.raises(StreamingQueryException, match="FormatTooNew"):
        drained(stream(spark, queue, mayBeMissing=True), tmp_path)
    assert len(await redis.keys(f"{queue.name}:*")) == 1


async def test_a_cluster_needs_a_tagged_name_and_the_option(
    spark: SparkSession, queue: AsyncWorkQueue, cluster: RedisCluster, nodes: list[Redis]
) -> None:
    table = numbered(spark, 3)
    urls = [f"redis://127.0.0.1:{port_of(node)}" for node in nodes]
    assert "'{plain}'" in refused(table, queue, queue="plain", url=urls[0], cluster=True)
    for url in urls:
        with pytest.raises(InvalidArgument, match="cluster: got 'false', expected true"):
            await asyncio.to_thread(check_server, QueueTarget("plain", url))
    report = add(table, "{tagged}", url=urls[0], cluster=True)
    assert report.added == 3
    assert await cluster.llen("{tagged}:queue") == 3
    reader = spark.read.format("leasequeue").options(url=urls[0], queue="{tagged}", cluster=True)
    assert {row["id"] for row in reader.load().collect()} == names(3)


async def test_an_unknown_queue_is_refused(spark: SparkSession, queue: AsyncWorkQueue, redis: Redis) -> None:
    reader = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name)
    with pytest.raises(PySparkException, match="a queue that has been used") as raised:
        reader.load().collect()
    assert IN_A_TASK not in str(raised.value)
    assert reader.option("mayBeMissing", "true").load().collect() == []
    await redis.set(f"{queue.name}:fence", 7)
    reader = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name)
    assert reader.load().collect() == [], "it is known, and empty"


# ------------------------------------------------------------------------------------ streams, checkpoints


async def test_trigger_once_is_refused(spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path) -> None:
    await fill(queue, 25)
    with pytest.raises(StreamingQueryException, match="availableNow=True"):
        drained(stream(spark, queue), tmp_path, once=True)
    assert await queue.counts() == (25, 0, 0, 0)


async def test_a_new_query_on_an_unknown_queue_is_refused(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=r"queue: got .*, expected a queue that has been used"):
        drained(stream(spark, queue), tmp_path / "new")
    given = stream(spark, queue, mayBeMissing=True)
    assert drained(given, tmp_path / "other") == [(0, [])]
    await nothing_left(redis, queue)
    assert drained(stream(spark, queue), tmp_path / "other") == [], "its checkpoint knows the queue"


async def test_a_checkpoint_of_another_queue_is_refused(queue: AsyncWorkQueue) -> None:
    reader = LeasesReader({"url": str(queue.url), "queue": queue.name}, ITEMS)
    start = {"queue": "other", "query": "q", "batch": 1}
    with pytest.raises(InvalidArgument, match=f"lease stream of the queue '{queue.name}'"):
        reader.latestOffset(start, reader.getDefaultReadLimit())


async def test_a_checkpoint_of_events_is_refused(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10)
    await fill(queue, 1)
    drained(stream(spark, queue, **{"from": "events"}), tmp_path)
    said = f"got 'a stream of events of {queue.name}', expected the checkpoint of a lease stream"
    with pytest.raises(StreamingQueryException, match=said):
        drained(stream(spark, queue), tmp_path)
    assert await queue.queue_len() == 1


async def test_a_new_query_does_not_wait_for_a_server_that_is_away(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    begin, away = time.monotonic(), stream(spark, queue, url="redis://127.0.0.1:1", retryTimeout=3600)
    with pytest.raises(StreamingQueryException, match="ConnectionLost"):
        await asyncio.to_thread(lambda: drained(away, tmp_path))
    assert time.monotonic() - begin < 600, "a running query would wait for an hour"
