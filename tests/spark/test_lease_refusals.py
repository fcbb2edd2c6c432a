"""The lease stream with invalid options, queues and checkpoints: its errors, and that nothing is leased."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException

from leasequeue import InvalidArgument
from leasequeue.spark.leases import LeasesReader
from leasequeue.spark.schema import ITEMS
from leasequeue.spark.source import LeasequeueSource
from tests.spark.streaming import drained, stream
from tests.spark.test_leases import fill, nothing_left

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue


async def test_trigger_once_is_refused(spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path) -> None:
    await fill(queue, 25)
    with pytest.raises(StreamingQueryException, match="trigger: got 'once', expected availableNow=True"):
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxItemPerTrigger": "1"}, "did you mean 'maxItemsPerTrigger'"),
        ({"maxRows": "1"}, "did you mean 'maxItemsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "1"}, "did you mean 'maxItemsPerTrigger'"),
        ({"maxRows": "1", "from": "events"}, "did you mean 'maxEventsPerTrigger'"),
        ({"maxItemsPerTrigger": "0"}, "a whole number from 1"),
        ({"leaseTime": "soon"}, "a number of seconds"),
        ({"from": "nowhere"}, "items or events"),
        ({"queue": ""}, "queue: got None, expected the queue's name, as the option queue"),
        ({"queue": "emails:item"}, "queue: got 'emails:item', expected a name without ':item'"),
        ({"url": "redis://user:secret@localhost"}, "urlEnv or urlFile"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_invalid_option_is_an_error_of_the_driver(
    queue: AsyncWorkQueue, options: dict[str, Any], said: str
) -> None:
    """The reader is what Spark makes on the driver when it plans a query."""
    with pytest.raises(InvalidArgument, match=said) as caught:
        LeasequeueSource({"url": str(queue.url), "queue": queue.name} | options).streamReader(ITEMS)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxItemPerTrigger": "1"}, "did you mean 'maxItemsPerTrigger'"),
        ({"maxOffsetsPerTrigger": "1"}, "did you mean 'maxItemsPerTrigger'"),
        ({"maxItemsPerTrigger": "0"}, "maxItemsPerTrigger: got '0', expected a whole number from 1"),
        ({"partitions": "0"}, "partitions: got '0', expected a whole number from 1"),
        ({"maxRows": "5", "from": "events"}, "did you mean 'maxEventsPerTrigger'"),
        ({"queue": ""}, "queue: got None"),
        ({"url": "redis://user:secret@localhost"}, "urlEnv or urlFile"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_refused_when_the_stream_is_loaded(
    spark: SparkSession, queue: AsyncWorkQueue, options: dict[str, str], said: str
) -> None:
    with pytest.raises(AnalysisException, match=said) as caught:
        stream(spark, queue, **options)
    assert "secret" not in str(caught.value)


async def test_a_new_query_does_not_wait_for_a_server_that_is_away(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    begin = time.monotonic()
    with pytest.raises(StreamingQueryException, match="ConnectionLost"):
        await asyncio.to_thread(lambda: drained(stream(spark, queue, url="redis://127.0.0.1:1"), tmp_path))
    assert time.monotonic() - begin < 55, "a running query would wait for 60 s"
