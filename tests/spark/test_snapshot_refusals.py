"""Snapshots with invalid options, or of an unknown queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructType

from leasequeue import InvalidArgument
from leasequeue.spark.schema import EVENTS, ITEMS
from leasequeue.spark.source import LeasequeueSource
from tests.spark.test_bad_input import IN_A_TASK, located

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (StructType().add("missing", StringType()), {}, "schema: got 'missing', expected columns among"),
        (StructType().add("size", StringType()), {}, "schema: got 'size string', expected bigint"),
        (ITEMS, {"partitions": "many"}, "partitions: got 'many', expected a whole number"),
        (ITEMS, {"partitions": "0"}, "partitions: got '0', expected a whole number from 1"),
        (ITEMS, {"idColumn": "id"}, "option: got 'idcolumn'"),
        (EVENTS, {"from": "events", "maxRows": "5"}, "option: got 'maxrows'"),
        (ITEMS, {"from": "there"}, "items or events"),
        (ITEMS, {"mayBeMissing": "yes"}, "true or false"),
    ],
    ids=["column", "type", "partitions", "no partitions", "unknown", "events", "from", "mayBeMissing"],
)
def test_an_invalid_option_of_a_read_is_an_error_of_the_driver(
    queue: AsyncWorkQueue, schema: StructType, options: dict[str, str], said: str
) -> None:
    """The reader is what Spark makes on the driver when it plans a query."""
    with pytest.raises(InvalidArgument, match=said):
        LeasequeueSource(located(queue, options)).reader(schema)


async def test_an_unknown_queue_is_refused(spark: SparkSession, queue: AsyncWorkQueue, redis: Redis) -> None:
    reader = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name)
    with pytest.raises(PySparkException, match="a queue that has been used") as raised:
        reader.load().collect()
    assert IN_A_TASK not in str(raised.value)
    assert reader.option("mayBeMissing", "true").load().collect() == []
    await redis.set(f"{queue.name}:fence", 7)
    reader = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name)
    assert reader.load().collect() == [], "it is known, and empty"
