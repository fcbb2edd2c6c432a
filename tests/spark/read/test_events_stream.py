"""The kept events as a table, and as a stream: each once, with numbers without a gap."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from leasequeue import AsyncWorkQueue, Failure, InvalidArgument, Item
from leasequeue.errors import EventsLost, NoEventsKept
from leasequeue.spark.read.events import EventRange, EventsReader, EventsTable
from leasequeue.spark.schema import EVENTS as SCHEMA
from tests.queue.asking import command, take, until
from tests.queue.keyspace import calls
from tests.spark.streaming import Batches, drained, elsewhere, running, stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from redis.asyncio import Redis

    from tests.queue.fixtures import MakeQueue

EVENTS = {"from": "events"}


def numbers(batches: Batches) -> list[int]:
    return [row["number"] for _, rows in batches for row in rows]


async def add(queue: AsyncWorkQueue, count: int, start: int = 0) -> None:
    await queue.add_items([Item(b"12345", id=f"i{number}") for number in range(start, start + count)])


async def test_events_are_rows_with_the_same_fields(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10_000)
    await add(queue, 3)
    await queue.complete(await take(queue))
    await queue.fail(await take(queue), "no good", retry_in=60)
    await queue.release(await take(queue))
    await queue.fail_many([Failure(await take(queue), "bad")])
    [(_, rows)] = drained(stream(spark, queue, **EVENTS), tmp_path)
    events = [event async for event in queue.events(follow=False)]
    assert len(rows) == len(events) == 11
    for row, event in zip(rows, events, strict=True):
        for field in ("number", "what", "id", "holder", "token", "attempt", "size", "front", "error"):
            assert row[field] == getattr(event, field)
        assert row["at"].timestamp() == pytest.approx(event.at)
        assert (row["due"] and row["due"].timestamp()) == (event.due and pytest.approx(event.due))


async def test_the_kept_events_are_a_table(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    begin = await queue.events.keep(count=10_000)
    table = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name, **EVENTS)
    assert table.load().collect() == []
    await add(queue, 1_200)
    streamed = [row for _, rows in drained(stream(spark, queue, **EVENTS), tmp_path) for row in rows]
    rows = table.option("partitions", 2).load().orderBy("number").collect()
    assert [row["number"] for row in rows] == [*range(begin + 1, begin + 1_201)]
    assert rows == sorted(streamed, key=lambda row: row["number"])
    # Dropped events are no loss here: the table has those that are kept.
    await redis.xtrim(f"{queue.name}:events", maxlen=700, approximate=False)
    narrow = table.schema("number long").load()
    assert sorted(row["number"] for row in narrow.collect()) == [*range(begin + 501, begin + 1_201)]
    await queue.events.stop()
    with pytest.raises(PySparkException, match="keeps no events"):
        table.load().collect()


async def test_events_that_are_dropped_between_plan_and_read_of_a_table_are_noticed(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.events.keep(count=10_000)
    await add(queue, 10)
    read: dict[str, object] = {}
    for lossless in ("true", "false"):
        given = {"url": str(queue.url), "queue": queue.name, "failOnLoss": lossless}
        table = EventsTable(given, SCHEMA)
        (part,) = await asyncio.to_thread(table.partitions)
        await redis.xtrim(f"{queue.name}:events", maxlen=7 if lossless == "true" else 5, approximate=False)
        try:
            read[lossless] = sum(batch.num_rows for batch in await asyncio.to_thread(list, table.read(part)))
        except EventsLost as error:
            read[lossless] = type(error)
    assert read == {"true": EventsLost, "false": 5}


async def test_a_run_continues_after_the_last_event_of_the_run_before(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    """Events emitted during a run are left to the next run."""
    begin = await queue.events.keep(count=10_000)
    await add(queue, 2_500)

    def produce(number: int) -> None:
        with elsewhere(queue) as portal:
            portal.call(add, portal.queue, 10, 10_000 * (number + 1))

    rows = stream(spark, queue, maxEventsPerTrigger=1_200, partitions=3, **EVENTS)
    first = drained(rows, tmp_path, after_batch=produce)
    assert [len(rows) for _, rows in first] == [1_200, 1_200, 100]
    second = drained(rows, tmp_path)
    assert sorted(numbers(first) + numbers(second)) == [*range(begin + 1, begin + 2_531)]
    assert drained(rows, tmp_path) == []


async def test_latest_skips_earlier_events(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10_000)
    await add(queue, 5)
    rows = stream(spark, queue, startingFrom="latest", **EVENTS)
    assert numbers(drained(rows, tmp_path)) == []
    await add(queue, 3, 5)
    assert [row["id"] for _, rows in drained(rows, tmp_path) for row in rows] == ["i5", "i6", "i7"]


async def test_a_running_query_follows_new_events_and_reports_its_position(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    begin = await queue.events.keep(count=10_000)
    batches: Batches = []
    rows = stream(spark, queue, **EVENTS)
    query = running(rows, tmp_path, lambda rows, number: batches.append((number, rows.collect())))
    try:
        for total in (3, 7):
            await add(queue, total)  # an id that is already there emits no event

            async def all_read(wanted: int = begin + total) -> bool:
                assert query.exception() is None
                return len(batches) > 0 and numbers(batches)[-1:] == [wanted]

            await until("they are read", all_read, within=120)

        async def is_reported() -> bool:
            progress = query.lastProgress
            return f'"number": {begin + 7}' in str(progress and progress["sources"][0]["latestOffset"])

        await until("its progress is reported", is_reported)
        before = await calls(redis, "evalsha")

        async def looked() -> bool:
            return await calls(redis, "evalsha") > before + 10

        await until("it polls again", looked)
    finally:
        query.stop()
    assert numbers(batches) == [*range(begin + 1, begin + 8)]


async def test_lost_events_are_an_error_that_names_the_option(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10_000)
    await add(queue, 5)
    rows = stream(spark, queue, **EVENTS)
    assert len(numbers(drained(rows, tmp_path))) == 5
    await queue.events.stop()
    begin = await queue.events.keep(count=10_000)
    await add(queue, 5, 5)
    with pytest.raises(StreamingQueryException, match="no longer kept") as caught:
        drained(rows, tmp_path)
    assert "failOnLoss" in str(caught.value)
    rest = drained(stream(spark, queue, failOnLoss="false", maxEventsPerTrigger=3, **EVENTS), tmp_path)
    assert [len(rows) for _, rows in rest] == [3, 2]
    assert numbers(rest) == [*range(begin + 1, begin + 6)]


async def test_events_lost_between_plan_and_read_are_noticed(queue: AsyncWorkQueue, redis: Redis) -> None:
    last = 1_500 + await queue.events.keep(count=10_000)
    await add(queue, 1_500)
    reader = EventsReader({"url": str(queue.url), "queue": queue.name}, SCHEMA)
    begin, end = ({"queue": queue.name, "number": number} for number in (last - 1_500, last))
    first, second = reader.partitions(begin, end)
    spans = (last - 1_500, last - 750), (last - 750, last)
    assert (first, second) == tuple(EventRange(*span, queue.name) for span in spans)
    await redis.xtrim(f"{queue.name}:events", maxlen=700, approximate=False)
    for part in (first, second):
        with pytest.raises(EventsLost, match="no longer kept"):
            await asyncio.to_thread(list, reader.read(part))
    lenient = EventsReader({"url": str(queue.url), "queue": queue.name, "failOnLoss": "false"}, SCHEMA)
    rows = await asyncio.to_thread(
        lambda: [sum(b.num_rows for b in lenient.read(p)) for p in (first, second)]
    )
    assert rows == [0, 700]


def reader_of(queue: AsyncWorkQueue, **options: str) -> EventsReader:
    """Make a reader as Spark does on the driver."""
    return EventsReader({"url": str(queue.url), "queue": queue.name, **options}, SCHEMA)


async def test_a_queue_without_events_is_an_error_that_names_the_call(queue: AsyncWorkQueue) -> None:
    reader = reader_of(queue)
    with pytest.raises(NoEventsKept, match=r"queue\.events\.keep"):
        await asyncio.to_thread(reader.initialOffset)
    reader.stop()


async def test_the_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, queue: AsyncWorkQueue, make_queue: MakeQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10_000)
    await add(queue, 1)
    drained(stream(spark, queue, **EVENTS), tmp_path)
    other = make_queue(name=f"{queue.name}-other")
    await other.events.keep(count=10_000)
    await add(other, 1)
    with pytest.raises(StreamingQueryException, match="a checkpoint of the events of queue"):
        drained(stream(spark, other, **EVENTS), tmp_path)


async def test_a_server_that_lost_its_events_is_noticed(queue: AsyncWorkQueue, redis: Redis) -> None:
    begin = await queue.events.keep(count=10_000)
    await add(queue, 5)
    start = {"queue": queue.name, "number": begin + 5}
    await redis.delete(f"{queue.name}:events")
    await command(redis, "HSET", f"{queue.name}:events:keep", "last", str(begin + 3))
    reader = reader_of(queue)
    with pytest.raises(InvalidArgument, match="the server has lost events"):
        await asyncio.to_thread(reader.latestOffset, start, reader.getDefaultReadLimit())
    reader.stop()


async def test_a_server_that_loses_its_last_events_under_a_running_query_is_noticed(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    begin = await queue.events.keep(count=10_000)
    await add(queue, 5)
    batches: Batches = []
    rows = stream(spark, queue, **EVENTS)
    query = running(rows, tmp_path, lambda rows, number: batches.append((number, rows.collect())))
    try:

        async def all_read() -> bool:
            return numbers(batches)[-1:] == [begin + 5]

        await until("they are read", all_read, within=120)
        # In one step, like a fail-over.
        async with redis.pipeline(transaction=True) as lose:
            lose.delete(f"{queue.name}:events")
            lose.hset(f"{queue.name}:events:keep", "last", str(begin + 3))
            await lose.execute()

        async def has_ended() -> bool:
            return not query.isActive

        await until("it has ended", has_ended, within=120)
    finally:
        query.stop()
    message = str(query.exception())
    assert f"EventsLost: event {begin + 5} was read, but the server has lost its last writes" in message
    assert "start with a new checkpointLocation" in message


async def test_a_server_that_loses_events_between_plan_and_read_is_noticed(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    begin = await queue.events.keep(count=10_000)
    await add(queue, 5)
    reader = EventsReader({"url": str(queue.url), "queue": queue.name}, SCHEMA)
    (part,) = reader.partitions(*({"queue": queue.name, "number": begin + n} for n in (0, 5)))
    for last in (begin + 3, begin):
        newer = [f"{number}-1" for number in range(last + 1, begin + 6)]
        await command(redis, "XDEL", f"{queue.name}:events", *newer)
        await command(redis, "HSET", f"{queue.name}:events:keep", "last", str(last))
        with pytest.raises(EventsLost, match=f"event {begin + 5} was read") as caught:
            await asyncio.to_thread(list, reader.read(part))
        assert caught.value.first_kept == last + 1
