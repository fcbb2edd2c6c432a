"""`process`: each completed item is in the output once, and none is completed before that."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from leasequeue import ConnectionLost, InvalidArgument, Item
from leasequeue.spark import HandlerFailed, OutputTakenOver, process
from leasequeue.spark.process.output import OutputFolder
from tests.eventually import eventually
from tests.spark.programs.process_program import OUTCOMES
from tests.spark.programs.process_program import measure as measure_some

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import Row, SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue

SCHEMA = "id string, length long"


def measure(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the length of the data of each item."""
    for batch in batches:
        lengths = [len(data.as_py()) for data in batch.column("data")]
        yield pa.record_batch({"id": batch.column("id"), "length": pa.array(lengths, pa.int64())})


def measure_frames(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Do the same with pandas."""
    for frame in frames:
        yield frame.assign(length=frame["data"].map(len))[["id", "length"]]


class Place:
    """The output of one test."""

    def __init__(self, spark: SparkSession, folder: Path, url: str, queue: str) -> None:
        self.spark, self.output = spark, str(folder / "output")
        self.given: dict[str, Any] = {"output": self.output, "schema": SCHEMA, "queue": queue, "url": url}

    def process(self, handler: Any = measure, **options: Any) -> Any:
        """Run `process`."""
        return process(self.spark, handler, **(self.given | options))

    def rows(self) -> list[tuple[str, int]]:
        """Return the rows of the output."""
        return sorted((row["id"], row["length"]) for row in self.spark.read.parquet(self.output).collect())


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path, redis_url: str, name: str) -> Place:
    return Place(spark, tmp_path, redis_url, name)


async def put(queue: AsyncWorkQueue, first: int, count: int) -> list[tuple[str, int]]:
    """Add items and return their rows of the output."""
    ids = [f"{number:04}" for number in range(first, first + count)]
    await queue.add_items([Item(b"x" * int(id_), id=id_) for id_ in ids])
    return [(id_, int(id_)) for id_ in ids]


async def test_items_are_in_the_output_and_completed(
    place: Place, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    expected = await put(queue, 0, 70)
    lines: list[str] = []
    done = place.process(batch=30, progress=lines.append)
    assert (done.items, done.batches, len(lines)) == (70, 3, 3)
    assert 0 < done.seconds < 300
    assert place.rows() == expected
    assert not any(await queue.counts())
    assert place.spark.sparkContext.defaultParallelism == 2
    assert files_of_batch(tmp_path, 0) == 2, "one task per core"
    expected += await put(queue, 70, 10)
    done = place.process(batch=30)
    assert (done.items, done.batches) == (10, 1)
    assert place.rows() == expected


def files_of_batch(folder: Path, number: int) -> int:
    return len([*(folder / "output" / f"batch={number:08}").glob("*.parquet")])


async def test_a_handler_of_pandas_frames_with_five_tasks_and_a_checkpoint_elsewhere(
    place: Place, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    conf = place.spark.sparkContext._jsc.hadoopConfiguration()
    conf.set("fs.pfile.impl", "org.apache.hadoop.fs.ProxyLocalFileSystem")
    expected = await put(queue, 0, 40)
    checkpoint = f"pfile://{tmp_path}/checkpoint"
    done = place.process(measure_frames, kind="pandas", partitions=5, checkpoint=checkpoint)
    assert (done.items, done.batches) == (40, 1)
    assert place.rows() == expected
    assert files_of_batch(tmp_path, 0) == 5
    assert not any(await queue.counts())


async def test_an_empty_queue_ends_the_run_at_once(place: Place, queue: AsyncWorkQueue) -> None:
    with pytest.raises(InvalidArgument, match="a queue that has been used"):
        place.process()
    done = place.process(mayBeMissing=True)
    assert (done.items, done.batches) == (0, 0)
    assert place.process().items == 0, "this checkpoint knows the queue"
    assert not any(await queue.counts())


async def test_a_batch_that_failed_runs_again_and_replaces_its_output(
    place: Place, queue: AsyncWorkQueue, redis: Redis, name: str, tmp_path: Path
) -> None:
    expected = await put(queue, 0, 40)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        seen: list[str] = []
        for batch in batches:
            seen += batch.column("id").to_pylist()
            yield from measure(iter([batch]))
        if "0025" in seen:
            raise LookupError("at the end")

    with pytest.raises(HandlerFailed) as raised:
        place.process(fail, batch=20)
    first = str(raised.value).splitlines()[0]
    assert first.startswith("LookupError: at the end (line ")
    assert "test_process.py, in fail; items '00" in first
    assert isinstance(raised.value.__cause__, PySparkException)
    done_before = {row[0] for row in place.rows()}
    unfinished = {key[-4:].decode() async for key in redis.scan_iter(f"{name}:item:*")}
    assert len(unfinished) == 20
    assert not done_before & unfinished
    assert done_before | unfinished == {id_ for id_, _ in expected}
    # As if killed between the output and Spark's commit log.
    place.spark.createDataFrame([("old", 1)], SCHEMA).write.parquet(f"{place.output}/batch=00000001")
    assert place.process(batch=20).items == 20
    assert place.rows() == expected
    assert not [*(tmp_path / "output").glob("_batch*")]
    assert not any(await queue.counts())


async def test_invalid_arguments_are_errors_before_any_item_is_leased(
    place: Place, queue: AsyncWorkQueue, make_queue: MakeQueue, tmp_path: Path
) -> None:
    await put(queue, 0, 5)
    with pytest.raises(InvalidArgument, match="'arrow', 'pandas' or 'item'"):
        place.process(kind="polars")
    with pytest.raises(InvalidArgument, match="maxItemsPerTrigger"):
        place.process(batch=0)
    with pytest.raises(InvalidArgument, match="leaseTime"):
        place.process(leasetim=3)
    with pytest.raises(InvalidArgument, match="queue: got None, expected the queue's name"):
        place.process(queue=None)
    with pytest.raises(InvalidArgument, match=r"output: .*No FileSystem for scheme"):
        place.process(output="nowhere://there/output")
    with pytest.raises(InvalidArgument, match=r"checkpoint: .*No FileSystem for scheme"):
        place.process(checkpoint="nowhere://there/checkpoint")
    with pytest.raises(InvalidArgument, match=r"checkpoint: .*on a file system that Spark can use"):
        place.process(checkpoint="hdfs://no-such-host.invalid/checkpoint")
    with pytest.raises(ConnectionLost):
        place.process(url="redis://127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="columns and their types"):
        place.process(schema="no schema at all")
    assert (await queue.counts()).waiting == 5
    place.process()
    with pytest.raises(InvalidArgument, match="the same checkpoint"):
        place.process(checkpoint=str(tmp_path / "another"))
    async with make_queue(name=f"{queue.name}-other") as other:
        await put(other, 0, 3)
        with pytest.raises(InvalidArgument, match=f"output: got .* this is one of '{queue.name}'"):
            place.process(queue=other.name)
        assert (await other.counts()).waiting == 3


class Eager:
    """A handler that is an object."""

    async def __call__(self, item: Row) -> None:
        """Take an item."""


async def of_items(item: Row) -> dict[str, Any]:
    return {"id": item.id, "length": 1}


async def of_batches(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    for batch in batches:
        yield batch


@pytest.mark.parametrize("handler", [of_items, of_batches, partial(of_items), Eager()])
async def test_an_async_handler_is_refused_before_any_item_is_leased(
    place: Place, queue: AsyncWorkQueue, handler: Any
) -> None:
    await put(queue, 0, 5)
    for kind in ("item", "arrow"):
        with pytest.raises(InvalidArgument, match=r"handler: got .* a function without `async`"):
            place.process(handler, kind=kind)
    assert await queue.counts() == (5, 0, 0, 0)


async def test_a_handler_that_leaves_items_unread_ends_the_run(place: Place, queue: AsyncWorkQueue) -> None:
    expected = await put(queue, 0, 20)

    def first_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in measure(batches):
            yield batch
            return

    def lazy(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return iter([pa.record_batch({"id": ["0"], "length": [1]})])

    with pytest.raises(HandlerFailed, match=r"^handler: got .* reads all its batches: \d+ items left unread"):
        place.process(lazy)
    assert (await queue.counts()).total == 20
    # Each task has one batch, and reads it: none is left.
    assert place.process(first_rows).items == 20
    assert place.rows() == expected


async def test_a_run_that_finds_only_leased_items_says_so(
    place: Place, queue: AsyncWorkQueue, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await put(queue, 0, 10)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise KeyError(next(batches).num_rows)

    with pytest.raises(HandlerFailed, match=r"^KeyError: \d+ \(line "):
        place.process(fail)
    before = datetime.now(UTC)
    done = place.process(output=str(tmp_path / "another"))
    assert (done.items, done.leased) == (0, 10)
    assert done.leased_until is not None
    assert before < done.leased_until
    [record] = [one for one in caplog.records if one.name == "leasequeue.spark.process.processing"]
    assert "10 are leased, the last until" in record.getMessage()
    caplog.clear()
    done = place.process()
    assert (done.items, done.leased, done.leased_until) == (10, 0, None)
    assert place.rows() == expected
    assert not [one for one in caplog.records if one.name == "leasequeue.spark.process.processing"]


async def test_spark_gets_a_short_text_of_an_error_and_knows_a_stop_by_it(
    place: Place, queue: AsyncWorkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's pattern for a stop recurs at each character of the text, and its stack is not that deep."""
    await put(queue, 0, 3)
    proxy = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.parquet"
    trace = "\tat org.apache.spark.Some.method(Some.scala:1)\n" * 2_000
    texts: list[str] = []

    def broken(text: str) -> Any:
        def write(*_: Any) -> None:
            raise InvalidArgument("output", "x", "a folder") from RuntimeError(text)

        return write

    for name in ("java.io.IOException", "java.lang.InterruptedException"):
        monkeypatch.setattr(OutputFolder, "write", broken(f"{proxy}\n: {name}\n{trace}"))
        with pytest.raises(InvalidArgument, match="output: got 'x'") as raised:
            place.process()
        texts.append(str(raised.value.__cause__))
    streaming = place.spark._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution  # type: ignore[union-attr]
    context = place.spark.sparkContext._jsc.sc()
    error = place.spark._jvm.py4j.Py4JException  # type: ignore[union-attr]
    stopped = [streaming.isInterruptionException(error(text), context) for text in texts]
    assert stopped == [False, True]
    assert max(map(len, texts)) < 5_000


async def test_a_loaded_stream_is_processed(place: Place, queue: AsyncWorkQueue, redis_url: str) -> None:
    expected = await put(queue, 0, 30)
    given: dict[str, Any] = {"url": redis_url, "queue": queue.name}
    stream = place.spark.readStream.format("leasequeue").options(**given, maxItemsPerTrigger=20).load()
    done = process(stream, measure, output=place.output, schema=SCHEMA)
    assert (done.items, done.batches) == (30, 2)
    assert place.rows() == expected
    rate = place.spark.readStream.format("rate").load()
    events = place.spark.readStream.format("leasequeue").options(**given, **{"from": "events"}).load()
    hidden = [stream.limit(3), stream.where("size > 3"), stream.select("id")]
    for other in (rate, events, *hidden, place.spark.range(3), "files", None):
        with pytest.raises(InvalidArgument, match="a lease stream as it was loaded"):
            process(other, measure, output=place.output, schema=SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="options: got 'queue, maxItemsPerTrigger, url'"):
        process(stream, measure, output=place.output, schema=SCHEMA, queue="q", batch=3, url="u")


async def test_a_later_run_takes_over_the_output(place: Place, tmp_path: Path) -> None:
    spark, path = place.spark, place.output
    one, other = (spark.createDataFrame([(name, 1)], SCHEMA) for name in ("one", "other"))
    (tmp_path / "metadata").write_text('{"id": "query"}')
    earlier, later = OutputFolder(spark, path), OutputFolder(spark, path)
    earlier.check_checkpoint(str(tmp_path))
    earlier.write(one, 0, "query")

    class Slow(OutputFolder):
        """Lets another run start and write while this one writes."""

        def check_run(self) -> None:
            if [*(tmp_path / "output").glob("_batch-*")]:
                later.check_checkpoint(str(tmp_path))
                later.write(other, 0, "query")
            super().check_run()

    slow = Slow(spark, path)
    slow._run = earlier._run
    with pytest.raises(OutputTakenOver, match="has begun to write into"):
        slow.write(one, 0, "query")
    with pytest.raises(OutputTakenOver):
        earlier.write(one, 0, "query")
    assert place.rows() == [("other", 1)]
    assert not [*(tmp_path / "output").glob("_batch-*")]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_each_item_is_in_the_output_once_after_kills_at_any_time(
    place: Place, queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str, tmp_path: Path
) -> None:
    expected = [row for row in await put(queue, 0, 200) if row[0][-1] not in OUTCOMES]
    arguments, jvm = (redis_url, name, str(tmp_path), "20"), tmp_path / "jvm"

    def is_there(*signs: str) -> bool:
        return any(any((tmp_path / "output").glob(f"{sign}*")) for sign in signs)

    def is_reached(*signs: str) -> bool:
        return is_there(*signs) and jvm.exists() and bool(jvm.read_text())

    # While a batch is written, or just after it; between the output and Spark's log; and again as before.
    for signs in (
        ["_batch-00000000", "batch=00000000"],
        ["batch=00000001"],
        ["_batch-00000003", "batch=00000003"],
    ):
        jvm.unlink(missing_ok=True)  # that of the program before, which may have come further
        async with started(*arguments) as running:
            await eventually(f"{signs} is there", partial(is_reached, *signs), within=900)
            os.kill(int(jvm.read_text()), signal.SIGKILL)
            running.kill()
        unfinished = {key.rpartition(b":")[2].decode() async for key in redis.scan_iter(f"{name}:item:*")}
        assert unfinished
        there = {id_ for id_, _ in place.rows()} if is_there("batch=") else set()
        assert {id_ for id_, _ in expected} - there <= unfinished, "completed items are in the output"
    done = place.process(measure_some, batch=20)
    assert 0 < done.items < 200
    assert place.rows() == expected
    assert await queue.counts() == (0, 0, 20, 20)
    dead, delayed = await queue.dead_letters.list(), await queue.inspect("scheduled")
    assert {one.id[-1] for one in dead} == {"7"}
    assert {one.id[-1] for one in delayed} == {"3"}
    attempts = {one.attempt for one in dead} | {one.attempt for one in delayed}
    assert attempts == {1}, "each has failed once"


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the program, and kill it at the end of the block."""
    path = os.pathsep.join(filter(None, sys.path))
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.spark.programs.process_program"),
        *arguments,
        env={**os.environ, "PYTHONPATH": path},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()
