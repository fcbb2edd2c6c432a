"""Draining: each item that is completed is in the output once, and none is completed before that."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from leasehold import InvalidArgument, Item
from leasehold.spark import process
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession
    from redis.asyncio import Redis

    from leasehold import AsyncWorkQueue

SCHEMA = "id string, length long"


def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Give the length of the data of each item."""
    for batch in batches:
        lengths = [len(data.as_py()) for data in batch.column("data")]
        yield pa.record_batch({"id": batch.column("id"), "length": pa.array(lengths, pa.int64())})


def measure_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Do the same with pandas."""
    for frame in frames:
        yield frame.assign(length=frame["data"].map(len))[["id", "length"]]


class Place:
    """Where one test writes, and how it reads it."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, queue: str) -> None:
        self.spark, self.output = spark, str(folder / "output")
        self.given: dict[str, Any] = {"output": self.output, "schema": SCHEMA, "queue": queue, "url": url}

    def process(self, handler: Any = measure, **options: Any) -> Any:
        """Run it."""
        return process(self.spark, handler, **(self.given | options))

    def rows(self) -> list[tuple[str, int]]:
        """All that it wrote."""
        return sorted((row["id"], row["length"]) for row in self.spark.read.parquet(self.output).collect())


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, redis_url: str, name: str) -> Place:
    return Place(spark, tmp_path, redis_url, name)


async def put(queue: AsyncWorkQueue, first: int, count: int) -> list[tuple[str, int]]:
    """Add items; returns what the output has to say of them."""
    ids = [f"{number:04}" for number in range(first, first + count)]
    await queue.add_items([Item(b"x" * int(id_), id=id_) for id_ in ids])
    return [(id_, int(id_)) for id_ in ids]


@pytest.mark.parametrize(("kind", "handler"), [("arrow", measure), ("pandas", measure_frames)])
async def test_items_are_in_the_output_and_completed(
    place: Place, queue: AsyncWorkQueue, kind: str, handler: Any
) -> None:
    expected = await put(queue, 0, 70)
    told: list[str] = []
    done = place.process(handler, kind=kind, batch=30, tell=told.append)
    assert (done.items, done.batches, len(told)) == (70, 3, 3)
    assert 0 < done.seconds < 300
    assert place.rows() == expected
    assert not any(await queue.counts())
    expected += await put(queue, 70, 10)
    done = place.process(handler, kind=kind, batch=30)
    assert (done.items, done.batches) == (10, 1)
    assert place.rows() == expected


async def test_an_empty_queue_is_done_at_once(place: Place, queue: AsyncWorkQueue) -> None:
    done = place.process()
    assert (done.items, done.batches) == (0, 0)
    assert not any(await queue.counts())


async def test_a_batch_that_failed_is_completed_by_the_next_run(
    place: Place, queue: AsyncWorkQueue, redis: Redis, name: str
) -> None:
    expected = await put(queue, 0, 40)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if "0025" in batch.column("id").to_pylist():
                raise LookupError("no such letter")
            yield from measure(iter([batch]))

    with pytest.raises(PySparkException, match="no such letter"):
        place.process(fail, batch=20)
    done_before = {row[0] for row in place.rows()}
    unfinished = {key[-4:].decode() async for key in redis.scan_iter(f"{name}:item:*")}
    assert len(unfinished) == 20
    assert not done_before & unfinished
    assert done_before | unfinished == {id_ for id_, _ in expected}
    done = place.process(batch=20)
    assert done.items == 20
    assert place.rows() == expected
    assert not any(await queue.counts())


async def test_a_batch_that_runs_again_replaces_its_output(
    place: Place, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    expected = await put(queue, 0, 20)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from measure(batches)
        raise LookupError("at the end")

    with pytest.raises(PySparkException, match="at the end"):
        place.process(fail)
    # As if it had been killed when the output was there, and not yet in Spark's log.
    place.spark.createDataFrame([("old", 1)], SCHEMA).write.parquet(f"{place.output}/batch=00000000")
    place.process()
    assert place.rows() == expected
    assert not [*(tmp_path / "output").glob("_batch*")]
    assert not any(await queue.counts())


async def test_what_cannot_be_used_is_told_before_anything_is_leased(
    place: Place, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await put(queue, 0, 5)
    with pytest.raises(InvalidArgument, match="'arrow' or 'pandas'"):
        place.process(kind="polars")
    with pytest.raises(PySparkException, match="maxRows"):
        place.process(batch=0)
    with pytest.raises(PySparkException, match="leaseTime"):
        place.process(leasetim=3)
    with pytest.raises(InvalidArgument, match="columns and their types"):
        place.process(schema="no schema at all")
    assert (await queue.counts()).waiting == 5
    place.process()
    with pytest.raises(InvalidArgument, match="the same checkpoint"):
        place.process(checkpoint=str(tmp_path / "another"))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_killed_at_any_time_each_item_is_in_the_output_once(
    place: Place, queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str, tmp_path: Path
) -> None:
    expected = await put(queue, 0, 90)
    arguments = (redis_url, name, str(tmp_path), "20")
    # While a batch is written; when one is there and not in Spark's log; and once more while one is written.
    for sign in ("_batch-00000000", "batch=00000001", "_batch-00000003"):
        async with started(*arguments) as running:
            await eventually(f"{sign} is there", (tmp_path / "output" / sign).exists, within=300)
            os.kill(int((tmp_path / "jvm").read_text()), signal.SIGKILL)
            running.kill()
        unfinished = {key.rpartition(b":")[2].decode() async for key in redis.scan_iter(f"{name}:item:*")}
        assert unfinished
        there = {id_ for id_, _ in place.rows()} if sign != "_batch-00000000" else set()
        assert {id_ for id_, _ in expected} - there <= unfinished, "what is completed is in the output"
    done = place.process(batch=20)
    assert 0 < done.items < 90
    assert place.rows() == expected
    assert not any(await queue.counts())


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the program, until the end of the block at the latest."""
    path = os.pathsep.join(filter(None, sys.path))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.spark.process_program"),
        *arguments,
        env={**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
