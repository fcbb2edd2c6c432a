"""The stream writer: a batch adds each row once, however often it runs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from leasequeue.queue.queue import engine_of
from tests.queue.asking import take
from tests.spark.tables import waiting

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue

COLUMNS = "id string, data string"


class Source:
    """A folder of JSON files that a stream reads, one file per batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.checkpoint = folder / "checkpoint"
        (folder / "rows").mkdir()
        self._count = 0

    def put(self, *ids: str) -> None:
        """Add a file."""
        self._count += 1
        lines = [json.dumps({"id": id_, "data": f"<{id_}>"}) for id_ in ids]
        (self.folder / "rows" / f"{self._count:04}.json").write_text("\n".join(lines))

    def rows(self, columns: str = COLUMNS) -> DataFrame:
        """Read them as a stream."""
        return (
            self.spark.readStream.schema(columns)
            .option("maxFilesPerTrigger", 1)
            .json(str(self.folder / "rows"))
        )

    def run(self, url: str, queue: str, **options: Any) -> None:
        """Write all new rows into the queue."""
        writer = self.rows(options.pop("columns", COLUMNS)).writeStream.format("leasequeue")
        query = (
            writer.outputMode("append")
            .options(url=url, queue=queue, **options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget(self, batch: int) -> None:
        """Undo the commit of a batch in the checkpoint, as after a crash."""
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path)


async def test_rows_of_a_stream_have_a_priority_and_a_group(
    spark: SparkSession, queue: AsyncWorkQueue, redis_url: str, tmp_path: Path
) -> None:
    source = Source(spark, tmp_path)
    source.put("a", "b")
    source.run(redis_url, queue.name, groupColumn="data", priority=4, expiresIn=600)
    found = {view.id: (view.priority, view.group, view.expires is None) for view in await queue.inspect()}
    assert found == {"a": (4, "<a>", False), "b": (4, "<b>", False)}


async def test_each_batch_adds_the_ids_that_are_not_there(
    source: Source, queue: AsyncWorkQueue, redis_url: str, name: str
) -> None:
    source.put("a", "b")
    source.put("c")
    source.run(redis_url, name)
    assert sorted(await waiting(queue)) == ["a", "b", "c"]
    lease = await take(queue)
    assert lease.data == b"<a>"
    await queue.complete(lease)
    source.put("d", "a")
    source.run(redis_url, name)
    assert sorted(await waiting(queue)) == ["a", "b", "c", "d"], "a later batch may add an id again"
    for _ in range(4):
        await queue.complete(await take(queue))
    shutil.rmtree(source.checkpoint)
    source.run(redis_url, name)
    assert sorted(await waiting(queue)) == ["a", "b", "c", "d"], "a new checkpoint makes a new query"


async def test_a_repeated_batch_adds_nothing_twice(
    source: Source, queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    source.put("a", "b")
    source.run(redis_url, name)
    source.put("c", "d", "a")
    source.run(redis_url, name)
    assert sorted(await waiting(queue)) == ["a", "b", "c", "d"]
    for _ in range(4):
        await queue.complete(await take(queue))
    source.forget(1)
    source.run(redis_url, name)
    # The first time, `a` was already there from the batch before.
    assert sorted(await waiting(queue)) == ["a"]
    ended, added = sorted([key async for key in redis.scan_iter(f"{name}:once:*")], reverse=True, key=len)
    assert ended.endswith(b":0:ended"), "only its end is recorded"
    assert added.endswith(b":1")
    assert await redis.smembers(added) == {b"a", b"c", b"d"}


async def test_a_task_that_outlives_its_batch_adds_nothing(
    source: Source, queue: AsyncWorkQueue, redis: Redis, redis_url: str, name: str
) -> None:
    source.put("a")
    source.put("b")
    source.run(redis_url, name)
    (ended,) = [key async for key in redis.scan_iter(f"{name}:once:*:0:ended")]
    assert 0 < await redis.pttl(ended) <= 3600 * 1000, "there may be many batches"
    run = ended.removeprefix(f"{name}:once:".encode()).removesuffix(b":ended")
    await queue.complete(await take(queue))
    rows = [b"a", b"", b"0", b"0", b"c", b"", b"0", b"0"]
    assert await engine_of(queue).bulk.add_once(run, rows) == [2, 2]
    assert sorted(await waiting(queue)) == ["b"]


async def test_a_server_that_does_not_answer_ends_a_new_query(
    source: Source, queue: AsyncWorkQueue, name: str
) -> None:
    source.put("a")
    with pytest.raises(PySparkException, match="localhost:1"):
        source.run("redis://localhost:1", name)
    assert sorted(await waiting(queue)) == []


async def test_output_mode_complete_is_refused(source: Source, redis_url: str, name: str) -> None:
    source.put("a")
    counted = source.rows().groupBy("id").count().selectExpr("id", "string(count) data")
    with pytest.raises(PySparkException, match="append or update"):
        (
            counted.writeStream.format("leasequeue")
            .options(url=redis_url, queue=name)
            .option("checkpointLocation", str(source.checkpoint))
            .outputMode("complete")
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
