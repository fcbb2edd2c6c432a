"""The lease stream: its batches, and when their items are completed."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import uuid
from typing import TYPE_CHECKING

import pytest

from leasequeue import AsyncWorkQueue, Item
from leasequeue.spark.read.leases import LeasesReader
from leasequeue.spark.schema import ITEMS
from tests.queue.asking import alone, until
from tests.queue.keyspace import audit, calls, left_over
from tests.spark.streaming import Batches, drained, elsewhere, ids, running, stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from redis.asyncio import Redis


async def fill(queue: AsyncWorkQueue, count: int, start: int = 0, size: int = 20) -> list[str]:
    names = [f"i{number:05}" for number in range(start, start + count)]
    await queue.add_items([Item(f"data of {name}".ljust(size, "."), id=name) for name in names])
    return names


async def nothing_left(redis: Redis, queue: AsyncWorkQueue) -> None:
    """Check that only keys of the stream are left, which expire."""
    await audit(redis, queue.name)
    left = await left_over(redis, queue.name)
    assert {key.split(b":")[1] for key in left} <= {b"stream"}
    for key in left:
        assert await redis.pttl(key) > 0


async def ended(query: StreamingQuery) -> str:
    """Wait for a query to fail, and return its message."""

    async def has_ended() -> bool:
        return not query.isActive

    await until("the query has ended", has_ended)
    return str(query.exception())


async def test_a_queue_is_drained_in_batches(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    names = await fill(queue, 25)
    before = time.time()
    batches = drained(stream(spark, queue, maxItemsPerTrigger=10), tmp_path)
    assert [(number, len(rows)) for number, rows in batches] == [(0, 10), (1, 10), (2, 5)]
    assert ids(batches) == names
    await nothing_left(redis, queue)
    row = batches[0][1][0].asDict()
    assert row["holder"].startswith("lh:")
    assert before + 590 < row.pop("due").timestamp() < time.time() + 610
    assert 0 <= row.pop("age") < 60
    assert row == {
        "id": "i00000",
        "state": "leased",
        "data": bytearray(b"data of i00000......"),
        "size": 20,
        "attempt": 1,
        "token": 1,
        "holder": row["holder"],
        "error": None,
        "priority": 0,
        "group": None,
        "expires": None,
    }


async def test_an_item_with_an_id_of_any_bytes_is_leased_like_others(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    """A foreign client added it."""
    await fill(queue, 1)
    await redis.set(f"{queue.name}:item:".encode() + b"\xff", b"theirs")
    await redis.lpush(f"{queue.name}:queue", b"\xff")
    [(_, rows)] = drained(stream(spark, queue), tmp_path)
    assert {row.id: bytes(row.data) for row in rows} == {
        "\\xff": b"theirs",
        "i00000": b"data of i00000......",
    }
    await nothing_left(redis, queue)


async def test_sinks_of_spark_can_be_used(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    names = await fill(queue, 300)
    rows = stream(spark, queue, maxItemsPerTrigger=120, partitions=3)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    table = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["id"] for row in table.select("id").collect()) == names
    await nothing_left(redis, queue)


async def test_a_run_leaves_later_items_to_the_next_run(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    first = await fill(queue, 15)
    second: list[str] = []

    def produce(number: int) -> None:
        with elsewhere(queue) as portal:
            second.extend(portal.call(fill, portal.queue, 5, 1000 * (number + 1)))

    one = drained(stream(spark, queue, maxItemsPerTrigger=10), tmp_path, after_batch=produce)
    assert (await queue.counts())[:2] == (10, 0)
    other = drained(stream(spark, queue, maxItemsPerTrigger=10), tmp_path)
    assert [(number, len(rows)) for number, rows in one + other] == [(0, 10), (1, 5), (2, 10)]
    assert (ids(one), ids(other)) == (first, second)
    await nothing_left(redis, queue)


@pytest.mark.parametrize("end", ["crash", "stop"])
async def test_items_reclaimed_while_a_query_was_down_are_in_the_same_batch(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path, end: str
) -> None:
    """After a crash they are read again; after a stop the next run completes them."""
    names = await fill(queue, 4)
    seen: Batches = []

    def take(rows: DataFrame, number: int) -> None:
        seen.append((number, rows.collect()))
        if end == "crash":
            raise ArithmeticError("the sink has written, and is killed")

    rows = stream(spark, queue, leaseTime=1, maxItemsPerTrigger=4)
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="1 hour").start()

    async def has_run() -> bool:
        return (tmp_path / "commits" / "0").exists() or not query.isActive

    await until("the batch has run", has_run)
    query.stop()

    async def are_reclaimed() -> bool:
        await queue.light_clean()
        return await queue.counts() == (4, 0, 0, 0)

    await until("the items are reclaimed", are_reclaimed)
    more = await fill(queue, 3, 100)
    batches = drained(stream(spark, queue, maxItemsPerTrigger=4), tmp_path)
    expected = [(0, names), (1, more)] if end == "crash" else [(1, more)]
    assert [(number, ids([(number, rows)])) for number, rows in batches] == expected
    assert [(number, ids([(number, rows)])) for number, rows in seen] == [(0, names)]
    await queue.close()
    await alone(redis)
    await nothing_left(redis, queue)


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 2), ({"maxItemsPerTrigger": "15000"}, 3), ({"maxItemsPerTrigger": "15000", "partitions": "4"}, 4)],
)
async def test_the_number_of_tasks_of_a_batch_depends_on_its_size(
    queue: AsyncWorkQueue, options: dict[str, str], tasks: int
) -> None:
    await fill(queue, 60)
    reader = LeasesReader({"url": str(queue.url), "queue": queue.name} | options, ITEMS)

    def plan() -> int:
        start = reader.initialOffset()
        try:
            return len(reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit())))
        finally:
            reader.stop()

    assert await asyncio.to_thread(plan) == tasks


async def test_the_last_batch_is_completed_without_a_next_one(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    await fill(queue, 10)
    batches: Batches = []
    query = running(
        stream(spark, queue), tmp_path, lambda rows, number: batches.append((number, rows.collect()))
    )

    async def all_done() -> bool:
        assert query.exception() is None
        # The set of a batch goes after its items; a query that is stopped in between leaves it to expire.
        return not (await queue.counts()).total and not await redis.keys(f"{queue.name}:set:*")

    try:
        await until("all is completed", all_done)
        await fill(queue, 7, 100)
        await until("all is completed", all_done)
        assert [len(rows) for _, rows in batches] == [10, 7]
    finally:
        query.stop()
    await queue.close()
    await alone(redis)
    await nothing_left(redis, queue)


async def test_an_idle_stream_polls_four_times_a_second(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    first = await calls(redis, "evalsha")
    query = running(stream(spark, queue, mayBeMissing=True), tmp_path, lambda _rows, _number: None)

    async def looked(times: int) -> bool:
        assert query.exception() is None
        return await calls(redis, "evalsha") >= times

    try:
        await until("it polls", lambda: looked(first + 5))
        begin, before = time.monotonic(), await calls(redis, "evalsha")
        await until("it polls again", lambda: looked(before + 9))
        # A round of two seconds ends without a wait and the next begins: nine polls in two seconds.
        assert time.monotonic() - begin > 2 * 0.7
    finally:
        query.stop()


async def test_leases_are_renewed_while_a_batch_runs(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    await queue.events.keep(count=1000)
    names = await fill(queue, 5)

    async def renewed(there: AsyncWorkQueue) -> bool:
        events = [event.id async for event in there.events(follow=False) if event.what == "renewed"]
        return all(events.count(name) > 3 for name in names)

    def work(_: int) -> None:
        with elsewhere(queue) as portal:
            portal.call(lambda: until("they are renewed", lambda: renewed(portal.queue)))

    drained(stream(spark, queue, leaseTime=1.5), tmp_path, after_batch=work)
    events = [event.what async for event in queue.events(follow=False)]
    assert "expired" not in events
    assert events.count("completed") == 5
    await queue.events.stop()
    await nothing_left(redis, queue)


async def test_a_second_query_takes_over_from_the_first(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    """It runs on a copy of the checkpoint with another id, so that Spark allows it."""
    await fill(queue, 10)
    taken: list[int] = []
    first = running(stream(spark, queue), tmp_path / "one", lambda rows, _: taken.append(rows.count()))
    try:

        async def has_taken() -> bool:
            assert first.exception() is None
            return taken == [10] and not (await queue.counts()).total

        await until("the first has a batch", has_taken)
        shutil.copytree(tmp_path / "one", tmp_path / "other")
        (tmp_path / "other" / ".metadata.crc").unlink()
        (tmp_path / "other" / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        names = await fill(queue, 5, 100)
        assert ids(drained(stream(spark, queue), tmp_path / "other")) in (names, [])
        said = await ended(first)
    finally:
        first.stop()
    assert "another query has taken over" in said
    assert "StreamTakenOver" in said


async def test_large_items_are_read_in_several_replies(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    names = [f"large{number}" for number in range(24)]
    for name in names:
        await queue.add_item(Item(name.encode() * (2**20 // len(name)), id=name))
    sizes: dict[str, int] = {}

    def take(rows: DataFrame, _: int) -> None:
        for row in rows.selectExpr("id", "size", "length(data) as length").collect():
            assert row["size"] == row["length"]
            sizes[row["id"]] = row["size"]

    rows = stream(spark, queue, maxItemsPerTrigger=20)
    writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sizes == {name: 2**20 // len(name) * len(name) for name in names}
    await nothing_left(redis, queue)
