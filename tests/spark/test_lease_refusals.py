"""The stream that leases, where it cannot: what it says, and that nothing is leased then."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.streaming import drained, stream
from tests.spark.test_leases import fill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from leasehold import AsyncWorkQueue
    from tests.queue.fixtures import MakeQueue


async def test_a_single_batch_is_refused_as_it_would_never_be_completed(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await fill(queue, 25)
    with pytest.raises(StreamingQueryException, match="trigger: got 'once', expected availableNow=True"):
        drained(stream(spark, queue), tmp_path, once=True)
    assert await queue.counts() == (25, 0, 0, 0)


async def test_a_queue_that_does_not_exist_is_an_error_of_a_new_query(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException, match=r"queue: got .*, expected a queue that has been used"):
        drained(stream(spark, queue), tmp_path / "new")
    given = stream(spark, queue, mayBeMissing=True)
    assert drained(given, tmp_path / "other") == [(0, [])]
    assert drained(stream(spark, queue), tmp_path / "other") == [], "its checkpoint knows the queue"


async def test_a_checkpoint_of_another_queue_is_refused(
    spark: SparkSession, queue: AsyncWorkQueue, make_queue: MakeQueue, tmp_path: Path
) -> None:
    await fill(queue, 1)
    drained(stream(spark, queue), tmp_path)
    other = make_queue(name=f"{queue.name}-other")
    await fill(other, 1)
    with pytest.raises(StreamingQueryException, match=f"lease stream of the queue '{other.name}'"):
        drained(stream(spark, other), tmp_path)
    assert await other.queue_len() == 1


async def test_a_checkpoint_of_events_is_refused(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=10)
    await fill(queue, 1)
    drained(stream(spark, queue, **{"from": "events"}), tmp_path)
    said = f"got 'a stream of events of {queue.name}', expected the checkpoint of a lease stream"
    with pytest.raises(StreamingQueryException, match=said):
        drained(stream(spark, queue), tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxRow": "1"}, "did you mean 'maxRows'"),
        ({"maxRows": "0"}, "a whole number from 1"),
        ({"leaseTime": "soon"}, "a number of seconds"),
        ({"from": "nowhere"}, "items or events"),
        ({"queue": ""}, "name: got"),
        ({"url": "redis://user:secret@localhost"}, "urlEnv or urlFile"),
        ({"url": "redis://127.0.0.1:1"}, "ConnectionLost"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_what_cannot_be_is_said(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    begin = time.monotonic()
    with pytest.raises(Exception, match=said) as caught:
        await asyncio.to_thread(lambda: drained(stream(spark, queue, **options), tmp_path))
    assert time.monotonic() - begin < 55, "it is not waited for as long as for a server that was there"
    assert "secret" not in str(caught.value)
