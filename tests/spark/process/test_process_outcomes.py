"""`process`: each item has its own outcome; wrong columns and stopped queries are errors."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from leasequeue import Reject, Retry, RetryPolicy
from leasequeue.spark import HandlerFailed, OutputTakenOver, Processed, QueryStopped, process
from tests.eventually import eventually
from tests.queue.keyspace import audit
from tests.spark.process.test_process import SCHEMA, Place, measure, place, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import Row
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

__all__ = ["place"]

RETRY = RetryPolicy(attempts=2, first=0, jitter=False)


def by_number(item: Row) -> dict[str, Any] | None:
    """Fail some items, and return nothing for one."""
    number = len(item.data)
    if number == 3:
        raise Reject("not three")
    if number == 4:
        raise LookupError("no four")
    if number == 5 and item.attempt == 1:
        raise Retry("not yet", delay=3600)
    return None if number == 6 else {"length": number, "id": item.id}


def columns_by_number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say the same in columns."""
    outcomes = {3: "reject", 4: "retry", 5: "retry"}
    for batch in batches:
        numbers = [len(data) for data in batch["data"].to_pylist()]
        columns = {
            "length": pa.array(numbers, pa.int32()),
            "_outcome": [outcomes.get(number) for number in numbers],
            "id": batch["id"],
            "_delay": [3600.0 if number == 5 else None for number in numbers],
            "_error": [None if number != 3 else "not three" for number in numbers],
        }
        yield pa.record_batch(columns).filter(pa.array([number != 6 for number in numbers]))


@pytest.mark.parametrize("kind", ["item", "arrow", pytest.param("pandas", marks=pytest.mark.long)])
async def test_one_bad_item_does_not_cost_its_batch(
    place: Place, queue: AsyncWorkQueue, redis: Redis, kind: str
) -> None:
    handler: Any = by_number if kind == "item" else columns_by_number
    if kind == "pandas":

        def handler(frames: Any) -> Any:
            for frame in frames:
                batch = pa.RecordBatch.from_pandas(frame[["id", "data"]], preserve_index=False)
                yield from (out.to_pandas() for out in columns_by_number(iter([batch])))

    expected = [row for row in await put(queue, 0, 20) if row[1] not in (3, 4, 5, 6)]
    lines: list[str] = []
    done = place.process(handler, kind=kind, retry=RETRY, batch=30, progress=lines.append)
    assert done == Processed(20, 16, 2, 1, 1, 1, done.seconds)
    assert (done.completed, done.failed) == (17, 3)
    assert lines == ["batch 0: 20 items so far, 2 retried, 1 dead"]
    assert place.rows() == expected
    assert place.spark.read.parquet(place.output).columns == ["id", "length", "batch"]
    assert await queue.counts() == (1, 0, 1, 1)
    await audit(redis, queue.name)
    [letter] = await queue.dead_letters.list()
    assert (letter.id, letter.error, letter.data) == ("0003", "Reject: not three", b"xxx")
    if kind == "item":
        # The item that may be tried at once fails for the last time; the other one is not due.
        done = place.process(handler, kind=kind, retry=RETRY)
        assert (done.items, done.rows, done.retried, done.dead) == (1, 0, 0, 1)
        dead = await queue.dead_letters.get("0004")
        assert dead is not None
        assert "LookupError: no four" in dead.error
        assert place.rows() == expected
        assert await queue.counts() == (0, 0, 1, 2)


async def test_a_batch_that_runs_again_after_a_crash_decides_anew(
    place: Place, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """The first run is ended between the failures and Spark's commit log."""
    expected = await put(queue, 1, 10)

    def crash(_: str) -> None:
        raise ArithmeticError("before the commit log")

    def fail(item: Row) -> None:
        raise Reject(f"not {item.id}")

    def work(item: Row) -> dict[str, Any]:
        if item.id == "0001":
            raise Retry(delay=60)
        return {"id": item.id, "length": len(item.data)}

    with pytest.raises(PySparkException, match="before the commit log"):
        place.process(fail, kind="item", progress=crash)
    assert await queue.counts() == (0, 10, 0, 0)
    assert [key async for key in redis.scan_iter(f"{queue.name}:set:*:failures")]
    done = place.process(work, kind="item")
    assert (done.items, done.rows, done.retried, done.dead) == (10, 9, 1, 0)
    assert place.rows() == expected[1:]
    assert await queue.counts() == (0, 0, 1, 0)
    assert not [key async for key in redis.scan_iter(f"{queue.name}:set:*")]


async def test_wrong_columns_write_and_complete_nothing(place: Place, queue: AsyncWorkQueue) -> None:
    await put(queue, 0, 20)

    def swapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in measure(batches):
            yield batch.rename_columns(["length", "id"])

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in measure(batches):
            yield batch.rename_columns(["id", "size"])

    for handler, expected in ((swapped, "column 'id' .* string"), (renamed, "'length' is missing, 'size'")):
        with pytest.raises(HandlerFailed, match=expected):
            place.process(handler)
        assert await queue.counts() == (0, 20, 0, 0)
    with pytest.raises(HandlerFailed, match=r"^without_output: got "):
        place.process(lambda _: None, kind="item", without_output="refuse")
    assert await queue.counts() == (0, 20, 0, 0)
    with pytest.raises(PySparkException, match=r"UNABLE_TO_INFER_SCHEMA|PATH_NOT_FOUND"):
        place.rows()


async def test_a_stream_of_chosen_columns_is_processed(
    place: Place, queue: AsyncWorkQueue, redis_url: str
) -> None:
    expected = await put(queue, 0, 5)
    given: dict[str, Any] = {"url": redis_url, "queue": queue.name}
    stream = (
        place.spark.readStream.format("leasequeue").options(**given).schema("data string, id string").load()
    )

    def handle(item: Row) -> dict[str, Any]:
        assert item.asDict().keys() == {"data", "id"}
        return {"id": item.id, "length": len(item.data)}

    done = process(stream, handler=handle, kind="item", output=place.output, schema=SCHEMA)
    assert (done.items, done.rows, done.without_output) == (5, 5, 0)
    assert place.rows() == expected


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take a second for a batch."""
    for batch in measure(batches):
        time.sleep(1)
        yield batch


async def test_a_stopped_query_is_an_error(place: Place, queue: AsyncWorkQueue, tmp_path: Path) -> None:
    await put(queue, 0, 60)
    running = asyncio.create_task(asyncio.to_thread(place.process, slow, batch=20))
    await eventually("a batch is written", lambda: any((tmp_path / "output").glob("batch=*")), within=120)
    for query in place.spark.streams.active:
        query.stop()
    with pytest.raises(QueryStopped, match="was stopped before all its input was processed"):
        await running
    assert (await queue.counts()).total > 0


async def test_a_replaced_query_is_an_error(place: Place, queue: AsyncWorkQueue, tmp_path: Path) -> None:
    expected = await put(queue, 0, 60)
    running = asyncio.create_task(asyncio.to_thread(place.process, slow, batch=20))
    await eventually("a batch is written", lambda: any((tmp_path / "output").glob("batch=*")), within=120)
    done = await asyncio.to_thread(place.process, batch=20)
    with pytest.raises(OutputTakenOver):
        await running
    assert 0 < done.items <= 60
    assert place.rows() == expected
    assert not any(await queue.counts())
