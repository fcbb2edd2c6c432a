"""The first batch of a new query, with the process that leases killed at each step of it.

programs/test_crashes.py kills the other processes, at all steps.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from leasequeue.spark.read.leases import LeasesReader
from leasequeue.spark.schema import ITEMS
from leasequeue.spark.source import LeasequeueSource
from tests.queue.asking import alone
from tests.queue.keyspace import left_over
from tests.spark.programs.faults import STEPS, FaultyReader
from tests.spark.read.test_leases import fill, nothing_left

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

#: The steps in the process that leases, and how many items are leased when it is killed there.
LEASED = {step: 0 for step in STEPS if step not in ("read", "after_write")}
LEASED |= {"mid_lease": 20, "divided": 40, "after_commit": 40}


class KilledReader(FaultyReader):
    """Injects faults in the process that leases only."""

    read = LeasesReader.read


class KilledSource(LeasequeueSource):
    """The data source, whose process on the driver is killed at the step that an option names."""

    @classmethod
    def name(cls) -> str:
        return "leasequeue-killed"

    def schema(self) -> StructType:
        return ITEMS

    def streamReader(self, schema: StructType) -> LeasesReader:  # noqa: N802 - Spark's name
        faults = {"FAULT_AT": self.options["at"], "FAULT_FOLDER": self.options["folder"]}
        os.environ.update(faults, FAULT_VICTIM="worker")  # this process reads one stream
        given = {name: self.options[name] for name in ("url", "queue", "maxItemsPerTrigger")}
        return KilledReader(given, schema)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if step in ("planned", "mid_lease") else [pytest.mark.long])
        for step in LEASED
    ],
)
async def test_the_run_after_a_kill_drains_the_queue(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path, step: str
) -> None:
    names = await fill(queue, 50)
    spark.dataSource.register(KilledSource)
    (notes := tmp_path / "notes").mkdir()
    given = {"url": queue.url, "queue": queue.name, "maxItemsPerTrigger": 40, "at": f"{step}:1"}
    rows = spark.readStream.format("leasequeue-killed").options(**given, folder=str(notes)).load()
    written: dict[int, list[str]] = {}

    def replace(batch: DataFrame, number: int) -> None:
        written[number] = [row["id"] for row in batch.collect()]

    writer = rows.writeStream.foreachBatch(replace).option("checkpointLocation", str(tmp_path / "at"))
    writer = writer.trigger(availableNow=True)
    with pytest.raises(StreamingQueryException):
        writer.start().awaitTermination()
    assert [path.name for path in notes.glob("done-*")] == [f"done-{step}-1"]
    assert (await queue.counts()).leased == LEASED[step]
    writer.start().awaitTermination()
    assert sorted(name for some in written.values() for name in some) == names
    await queue.close()
    await alone(redis)
    await nothing_left(redis, queue)


@pytest.fixture
def readers(queue: AsyncWorkQueue) -> Iterator[list[LeasesReader]]:
    """Return two readers of the queue, as two runs of a query have them."""
    both = [LeasesReader({"url": str(queue.url), "queue": queue.name}, ITEMS) for _ in range(2)]
    yield both
    for reader in both:
        reader.stop()


async def test_nothing_is_leased_before_spark_has_written_the_name(
    queue: AsyncWorkQueue, redis: Redis, readers: list[LeasesReader]
) -> None:
    """A run that ends before leaves nothing behind, so that the next one can begin again."""
    await fill(queue, 30)
    reader, _ = readers

    def plan() -> tuple[dict[str, Any], dict[str, Any]]:
        start = reader.initialOffset()
        assert reader.initialOffset() == start, "Spark asks twice"
        return start, reader.latestOffset(start, reader.getDefaultReadLimit())

    async def state() -> tuple[int, set[str]]:
        keys = {key.decode().split(":")[1] for key in await left_over(redis, queue.name)}
        return (await queue.counts()).leased, keys

    before = await state()
    start, end = await asyncio.to_thread(plan)
    assert await state() == before
    reported = await asyncio.to_thread(reader.reportLatestOffset)
    assert (reported["waiting"], reported["leased"]) == (0, 30), "after the batch that it has planned"
    assert await asyncio.to_thread(reader.partitions, start, end)
    assert (await queue.counts()).leased == 30


async def test_a_repeated_batch_leases_nothing_new(
    queue: AsyncWorkQueue, readers: list[LeasesReader]
) -> None:
    """A sink may skip a batch that it has seen, and then its items would be completed unprocessed."""
    await fill(queue, 30)
    first, second = readers

    def repeat() -> tuple[list[Any], dict[str, Any]]:
        start = first.initialOffset()
        end = first.latestOffset(start, first.getDefaultReadLimit())
        # The first run dies when Spark has written this offset.
        parts: list[Any] = second.partitions(start, end)
        return parts, second.latestOffset(end, second.getDefaultReadLimit())

    parts, end = await asyncio.to_thread(repeat)
    assert parts == []
    assert end["batch"] == 2
    assert (await queue.counts()).leased == 30
