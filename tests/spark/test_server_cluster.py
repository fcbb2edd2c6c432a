"""Streams on a cluster of servers, through a node that does not hold the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from leasequeue import AsyncWorkQueue, Item
from leasequeue.spark import add, process
from tests.faults.cluster_nodes import cluster, kind, nodes, port_of
from tests.spark.streaming import drained
from tests.spark.tables import names, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from redis.asyncio import Redis, RedisCluster

__all__ = ["cluster", "kind", "nodes"]

pytestmark = pytest.mark.long


def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.record_batch({"id": batch["id"], "bytes": [len(data.as_py()) for data in batch["data"]]})


@pytest.mark.parametrize(("names_", "shards"), [(("{first}", "{second}"), None), (("first", "second"), 6)])
async def test_all_streams_work_on_a_cluster(
    spark: SparkSession,
    cluster: RedisCluster,
    nodes: list[Redis],
    tmp_path: Path,
    names_: tuple[str, str],
    shards: int | None,
) -> None:
    urls = [f"redis://127.0.0.1:{port_of(node)}" for node in nodes]
    async with (
        AsyncWorkQueue(names_[0], cluster, shards=shards) as first,
        AsyncWorkQueue(names_[1], cluster, shards=shards) as second,
    ):
        for queue in (first, second):
            await queue.events.keep(count=1000)
        assert add(numbered(spark, 30), first.name, url=urls[0], cluster=True).added == 30

        leases = spark.readStream.format("leasequeue").options(
            url=urls[1], queue=first.name, cluster=True, maxItemsPerTrigger=10
        )
        query = (
            leases.load()
            .select("id", "data")
            .writeStream.format("leasequeue")
            .options(url=urls[2], queue=second.name, cluster=True, checkpointLocation=str(tmp_path / "moved"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert sum((await first.counts())[:3]) == 0
        assert (await second.counts()).waiting == 30

        done = process(
            spark,
            sizes,
            queue=second.name,
            output=str(tmp_path / "done"),
            schema="id string, bytes long",
            url=urls[0],
            cluster=True,
        )
        assert done.items == 30
        assert {row["id"] for row in spark.read.parquet(str(tmp_path / "done")).collect()} == names(30)
        assert sum((await second.counts())[:3]) == 0

        for name in names_:
            events = (
                spark.readStream.format("leasequeue")
                .options(url=urls[0], queue=name, cluster=True)
                .option("from", "events")
            )
            what = [row["what"] for _, rows in drained(events.load(), tmp_path / name) for row in rows]
            several = {"url": urls[0], "queuePattern": name}
            found = spark.read.format("leasequeue").options(**several, cluster=True).load()
            assert found.rdd.getNumPartitions() == (shards or 1)
            assert what.count("added") == what.count("leased") == what.count("completed") == 30


async def test_a_pattern_finds_the_queues_of_all_nodes(
    spark: SparkSession, cluster: RedisCluster, nodes: list[Redis]
) -> None:
    names = [f"{{q{number}}}" for number in range(4)]  # on all three nodes
    for name in names:
        async with AsyncWorkQueue(name, cluster) as queue:
            await queue.add_item(Item(b"text", id=f"of {name}"))
    given = {"url": f"redis://127.0.0.1:{port_of(nodes[0])}", "queuePattern": "{q*}"}
    found = spark.read.format("leasequeue").options(**given, cluster=True).load()
    rows = found.select("queue", "id").collect()
    assert sorted((row.queue, row.id) for row in rows) == sorted((name, f"of {name}") for name in names)
    with pytest.raises(PySparkException, match="part of one"):
        spark.read.format("leasequeue").options(**given).load().collect()
