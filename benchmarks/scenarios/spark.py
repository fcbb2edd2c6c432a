"""Bulk adds, snapshots and streams with Spark."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from redis import Redis

from benchmarks.measure import Row, Sample, Setting, metered, number_row, speed_row, take_turns
from leasequeue.keys import QueueKeys
from leasequeue.spark import register
from leasequeue.wire.runner import BoundScript

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from benchmarks.bench import Bench

#: Threads, and partitions of every table.
CORES = 2
PAYLOAD = 100
#: Items per call of the plain process, and rows per pipeline of redis-py.
AT_ONCE = 1_000
COSTS = ("us_per_item", "script_us_per_item")


@contextmanager
def open_session(folder: Path) -> Iterator[SparkSession]:
    """Run a session that writes its files into a folder."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{CORES}]").appName("leasequeue benchmarks")
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def table(spark: SparkSession, rows: int, payload: int = PAYLOAD) -> Iterator[DataFrame]:
    """Hold a table of ids and data in memory."""
    created = spark.range(0, rows, 1, CORES).selectExpr(
        "concat('item-', id) as id", f"cast(repeat('x', {payload}) as binary) as data"
    )
    created.cache().count()
    try:
        yield created
    finally:
        created.unpersist()


async def _measured(bench: Bench, items: int, step: Callable[[], object]) -> Sample:
    async with metered(bench.redis, items) as sample:
        step()
    return sample


async def bulk_add(bench: Bench, spark: SparkSession) -> list[Row]:
    """Measure bulk adds with the format, in a plain process, and with a pipeline of redis-py, in turns."""
    count = bench.scaled(200_000, 3_000)
    samples: dict[tuple[str, str], list[Sample]] = {}

    async def turn(target: tuple[str, str], add: Callable[[str], None]) -> None:
        name = bench.name()
        samples.setdefault(target, []).append(await _measured(bench, count, partial(add, name)))
        assert await bench.redis.llen(f"{name}:queue") == count
        await bench.reset()

    with table(spark, count) as df:
        targets: dict[tuple[str, str], Callable[[str], None]] = {
            ("leasequeue", "add"): partial(add_with_format, df, bench.server_url),
            ("ceiling", "add"): Plain(bench.server_url, count, "add_once").add,
            ("ceiling", "add (add_items)"): Plain(bench.server_url, count, "add_items").add,
            ("bare", "add"): partial(add_with_pipeline, df, bench.server_url),
        }
        await take_turns(1 + bench.scaled(7, 1), [partial(turn, *target) for target in targets.items()])
    return [
        speed_row(
            what,
            samples[who, what][1:],  # the first round warms up
            who=who,
            setting={"rows": count, "payload": PAYLOAD},
            unit="rows/s",
            costs=COSTS[:1] if who == "bare" else COSTS,
        )
        for who, what in targets
    ]


def add_with_format(df: DataFrame, url: str, name: str) -> None:
    """Add rows with the format."""
    df.write.format("leasequeue").options(url=url, queue=name).mode("append").save()


def add_with_pipeline(df: DataFrame, url: str, name: str) -> None:
    """Add rows without the format: two commands per row, which are not safe to repeat."""

    def add(rows: Iterator[Any]) -> None:
        redis = Redis.from_url(url)
        pipeline = redis.pipeline(transaction=False)
        for row in rows:
            pipeline.set(f"{name}:item:{row.id}", bytes(row.data), nx=True)
            pipeline.lpush(f"{name}:queue", row.id)
            if len(pipeline) >= 2 * AT_ONCE:
                pipeline.execute()
        pipeline.execute()
        redis.close()

    df.foreachPartition(add)


class Plain:
    """A plain process that calls a script with finished arguments, 1,000 items per call."""

    def __init__(self, url: str, count: int, script: str) -> None:
        self._redis = Redis.from_url(url)
        self._script = script
        self._calls = [
            [
                value
                for number in range(start, min(start + AT_ONCE, count))
                for value in (b"item-%d" % number, b"x" * PAYLOAD, b"0", b"0")
            ]
            for start in range(0, count, AT_ONCE)
        ]

    def add(self, name: str) -> None:
        """Add all items."""
        bound = BoundScript(self._script, QueueKeys(name, "lh:bench"))
        arguments: dict[str, bytes | int] = {
            "prefix": name.encode(),
            "now_ms": b"",
            "run": uuid.uuid4().hex.encode(),
            "keep_ms": 3_600_000,
        }
        self._redis.script_load(bound.script.body)
        for rows in self._calls:
            command: tuple[Any, ...] = (b"EVALSHA", bound.script.sha, *bound.tail(arguments, rows))
            self._redis.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py has no types


COLUMNS = {
    "all columns": "",
    "without data": "id string, state string, size long, attempt int, token long, holder string, "
    "due timestamp, age double, error string",
}


async def snapshot(bench: Bench, spark: SparkSession) -> list[Row]:
    """Measure snapshots of 200,000 items with and without data, and of two of them."""
    count, name, rounds = bench.scaled(200_000, 2_000), bench.name(), bench.scaled(5, 1)
    Plain(bench.server_url, count, "add_items").add(name)
    rows: list[Row] = []
    for what, schema in COLUMNS.items():
        read = partial(read_all, spark, bench.server_url, name, schema)
        samples = [await _measured(bench, count, read) for _ in range(1 + rounds)]
        setting: Setting = {"items": count, "payload": PAYLOAD}
        rows.append(speed_row(what, samples[1:], setting=setting, unit="rows/s", costs=COSTS[:1]))
    two = _load(spark, bench.server_url, name, ids="item-1, item-2")
    ms = [1000 * (await _measured(bench, 2, two.collect)).seconds for _ in range(rounds)]
    return [*rows, number_row("two items by their ids", "ms", ms, setting={"items": count}, samples=ms)]


def _load(spark: SparkSession, url: str, name: str, schema: str = "", **options: str) -> DataFrame:
    reader = spark.read.format("leasequeue").options(url=url, queue=name, partitions=CORES, **options)
    return (reader.schema(schema) if schema else reader).load()


def read_all(spark: SparkSession, url: str, name: str, schema: str = "") -> None:
    """Read a snapshot and discard it."""
    _load(spark, url, name, schema).write.format("noop").mode("overwrite").save()


#: The size of a batch whose time is all overhead.
SMALL = 50
#: The steps of a micro-batch -> their names in Spark's progress.
STEPS = {
    "all": "triggerExecution",
    "complete and lease": "latestOffset",
    "offset log": "walCommit",
    "plan": "queryPlanning",
    "read and write": "addBatch",
    "commit log": "commitOffsets",
}


async def drain(bench: Bench, spark: SparkSession) -> list[Row]:
    """Measure a stream by the size of its batches, and the steps of a small micro-batch.

    The rows are discarded. The first micro-batch of a query, in which Spark starts its workers, is left out.
    """
    rows: list[Row] = []
    # Items per batch -> the number of batches.
    batches = bench.scaled({1_000: 20, 10_000: 12, 50_000: 6, 200_000: 4}, {500: 3})
    for batch, count in batches.items():
        found = await _micro_batches(bench, spark, batch, count)
        for what, step in (("drain", STEPS["all"]), ("complete and lease", STEPS["complete and lease"])):
            samples = [Sample(items=batch, seconds=one[step] / 1000) for one in found]
            setting: Setting = {"batch": batch, "payload": PAYLOAD}
            rows.append(speed_row(what, samples, setting=setting, unit="rows/s", costs=COSTS[:1]))
    small = await _micro_batches(bench, spark, SMALL, bench.scaled(40, 3))
    for what, step in STEPS.items():
        ms = [one.get(step, 0) for one in small]
        rows.append(number_row(what, "ms", ms, setting={"items": SMALL, "payload": PAYLOAD}, samples=ms))
    return rows


async def _micro_batches(bench: Bench, spark: SparkSession, batch: int, count: int) -> list[dict[str, int]]:
    """Drain so many full batches; return the ms of each one's steps."""
    name = bench.name()
    Plain(bench.server_url, batch * (count + 1), "add_items").add(name)
    with TemporaryDirectory(prefix="leasequeue-bench-") as folder:
        rows = (
            spark.readStream.format("leasequeue")
            .options(url=bench.server_url, queue=name, maxItemsPerTrigger=batch, partitions=CORES)
            .load()
        )
        writer = rows.writeStream.format("noop").option(
            "checkpointLocation", str(Path(folder) / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        await asyncio.to_thread(query.awaitTermination)
        progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert [one["numInputRows"] for one in progress] == [batch] * (count + 1)
    assert not await bench.redis.exists(f"{name}:queue", f"{name}:deadlines")
    await bench.reset()
    return [one["durationMs"] for one in progress[1:]]
