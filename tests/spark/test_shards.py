"""Spark on queues with shards: each row and item once, in its shard, under the name of the whole queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StringType, StructType

from leasequeue import AsyncWorkQueue, InvalidArgument, Item, Reject, TaskQueue, Worker
from leasequeue.errors import WrongKeyType
from leasequeue.queue.queue import engine_of
from leasequeue.spark import add, add_task, backlogs, process, task_results
from leasequeue.spark.add.writers import BulkWriter, PartitionReport, Report, add_batches
from leasequeue.spark.jobs.archive import archive
from leasequeue.spark.jobs.item_history import ItemHistory
from leasequeue.spark.jobs.redrive import redrive
from leasequeue.spark.jobs.report import report
from leasequeue.spark.read.events import EventsReader
from leasequeue.spark.read.lease_sets import BatchSets, LeaseSets, fair_parts
from leasequeue.spark.read.leases import LeasesReader
from leasequeue.spark.read.several import QUEUED_ITEMS, SnapshotsReader
from leasequeue.spark.schema import EVENTS, ITEMS
from tests.faults.cluster_nodes import cluster, kind, nodes, port_of
from tests.queue.asking import until
from tests.queue.keyspace import audit
from tests.spark.add.test_sink import Source, source
from tests.spark.streaming import Batches, drained, ids, stream
from tests.spark.tables import names, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession
    from redis.asyncio import Redis, RedisCluster

__all__ = ["cluster", "kind", "nodes", "source"]

COUNT = 4
#: A row of `add_once` for an id.
NEW = (b"", b"0", b"0")


@asynccontextmanager
async def spread(url: str, name: str, by: Any = "id") -> AsyncIterator[AsyncWorkQueue]:
    """Open a queue with shards, which are noted from now on."""
    async with AsyncWorkQueue.from_url(url, name, shards=COUNT, shard_by=by) as one:
        await one.counts()
        yield one


@pytest.fixture
async def queue(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with spread(redis_url, name) as one:
        yield one


@pytest.fixture
async def by_group(redis_url: str, name: str) -> AsyncIterator[AsyncWorkQueue]:
    async with spread(redis_url, name, "group") as one:
        yield one


def loaded(spark: SparkSession, queue: AsyncWorkQueue, **options: Any) -> DataFrame:
    given = {"url": queue.url, "queue": queue.name, **options}
    return spark.read.format("leasequeue").options(**given).load()


async def complete_all(queue: AsyncWorkQueue) -> list[str]:
    """Complete all waiting items, and return their ids."""
    done: list[str] = []
    while leases := await queue.lease_many(1000, 600, block=False):
        assert all(await queue.complete_many(leases))
        done += [lease.id for lease in leases]
    return done


# ---------------------------------------------------------------------------------------------------- adding


async def test_an_add_makes_the_shards_and_a_later_one_finds_them(
    spark: SparkSession, redis_url: str, name: str
) -> None:
    rows = numbered(spark, 3_000)
    with pytest.raises(InvalidArgument, match="name without braces"):
        add(rows, f"{{{name}}}", url=redis_url, shards=COUNT)
    assert add(rows, name, url=redis_url, shards=COUNT).added == 3_000
    assert add(rows, name, url=redis_url).already_there == 3_000
    async with spread(redis_url, name) as queue:
        assert min([(await shard.counts()).waiting for shard in queue.shards]) > 500
        assert all([await queue.find(f"i{number}", data=False) for number in range(0, 3_000, 50)])
        for wrong in ({"shards": 8}, {"shards": COUNT, "shardBy": "group"}):
            with pytest.raises(InvalidArgument, match=f"shards={COUNT}, shard_by='id', as when"):
                add(numbered(spark, 4_000), name, url=redis_url, **wrong)
        assert (await queue.counts()).total == 3_000
        for one in (rows.limit(1), numbered(spark, 4_000)):
            with pytest.raises(PySparkException, match="as when the queue was first used"):
                one.write.format("leasequeue").options(url=redis_url, queue=name, shards=8).mode(
                    "append"
                ).save()
        assert (await queue.counts()).total == 3_000


def made(count: int) -> list[pa.RecordBatch]:
    """Make the rows of `names`, as Spark hands them to a task: in groups, but for each seventh."""
    numbers = range(count)
    table = pa.table(
        {
            "id": [f"i{number}" for number in numbers],
            "data": [b"x"] * count,
            "team": [f"g{number % 20}" if number % 7 else None for number in numbers],
        }
    )
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=700)
    return batches


def writer_of(one: AsyncWorkQueue, **options: str) -> BulkWriter:
    schema = StructType().add("id", StringType()).add("data", BinaryType()).add("team", StringType())
    return BulkWriter({"url": str(one.url), "queue": one.name, **options}, schema, overwrite=False)


def written(writer: BulkWriter, batches: list[pa.RecordBatch]) -> PartitionReport:
    """Add rows as a task does."""
    return add_batches(batches, writer.columns, writer.target, writer.run, 10)


async def finished(writer: BulkWriter, *reports: PartitionReport) -> Report:
    """End the job as the driver does, and return its report."""
    await asyncio.to_thread(writer.commit, [*reports])
    async with AsyncWorkQueue.from_url(writer.target.url, writer.target.queue, shards=COUNT) as queue:
        kept = await queue.results.get(writer.job)
    assert kept is not None
    return Report.read(writer.job, kept)


async def test_groups_stay_together(by_group: AsyncWorkQueue) -> None:
    assert written(writer_of(by_group, groupColumn="team"), made(300)).added == 300
    home = by_group.shard_of("", group="g3")
    free = sum([await home.find(f"i{number}") is None for number in range(9)])
    assert written(writer_of(by_group, group="g3"), made(9)).added == free > 0
    for shard in by_group.shards:
        for view in await shard.inspect(count=1000):
            assert by_group.shard_of(view.id, group=view.group) is shard


async def test_a_job_continues_an_aborted_one_and_adds_nothing_twice(
    queue: AsyncWorkQueue, redis: Redis
) -> None:
    aborted = writer_of(queue, job="nightly")
    assert written(aborted, made(1_400)).added == 1_400
    done = await complete_all(queue)
    again = writer_of(queue, job="nightly")
    found = await finished(again, written(again, made(2_500)))
    assert (found.rows, found.added, found.already_there) == (2_500, 2_500, 0)
    assert found.partitions[0].repeated == 1_400
    assert sorted(done + await complete_all(queue)) == sorted(names(2_500)), "each was there once"
    left = [key async for key in redis.scan_iter(f"*{queue.name}*:once:*")]
    assert len(left) == COUNT
    assert all(key.endswith(b":ended") for key in left), "no ids are kept, and the name is free"
    late = written(aborted, made(2_600))
    assert (late.added, late.repeated) == (0, 2_600)


async def test_a_job_has_ended_when_its_report_is_kept(queue: AsyncWorkQueue, redis: Redis) -> None:
    """The other shards end later. One that cannot still adds nothing twice, and fails nothing."""
    writer = writer_of(queue, job="nightly")
    report = written(writer, made(400))
    broken = next(one for one in queue.shards if one is not queue.shard_of("nightly"))
    await redis.rpush(f"{broken.name}:once::run", "x")  # `once_drop` cannot read this
    assert (await finished(writer, report)).added == 400
    assert await redis.scard(f"{broken.name}:once:{writer.run}") > 0
    await complete_all(queue)
    assert written(writer, made(400)).added == 0
    assert writer_of(queue, job="nightly").run != writer.run, "its name is free"


async def test_a_commit_that_cannot_count_leaves_the_job_open(queue: AsyncWorkQueue, redis: Redis) -> None:
    writer = writer_of(queue, job="nightly")
    report = written(writer, made(400))
    broken = next(one for one in queue.shards if one is not queue.shard_of("nightly"))
    key = f"{broken.name}:once:{writer.run}"
    await redis.rename(key, "away")
    await redis.set(key, "x")
    with pytest.raises(WrongKeyType):
        await finished(writer, report)
    await redis.rename("away", key)
    await complete_all(queue)
    again = writer_of(queue, job="nightly")
    assert (await finished(again, written(again, made(400)))).added == 400
    assert (await queue.counts()).total == 0, "none was added again"


async def test_a_layout_that_changes_while_a_job_runs_ends_it(queue: AsyncWorkQueue, redis_url: str) -> None:
    writer = writer_of(queue)
    await queue.admin.delete()
    async with AsyncWorkQueue.from_url(redis_url, queue.name, shards=2) as other:
        await other.counts()
        with pytest.raises(InvalidArgument, match="as when the queue was first used"):
            written(writer, made(10))
        assert (await other.counts()).total == 0


async def test_a_repeated_batch_of_a_stream_adds_nothing_twice(
    source: Source, queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    source.put(*(f"a{number}" for number in range(40)))
    source.run(redis_url, queue.name, shards=COUNT)
    source.put(*(f"b{number}" for number in range(40)), "a0")
    source.run(redis_url, queue.name)
    assert len(await complete_all(queue)) == 80
    source.forget(1)
    source.run(redis_url, queue.name)
    assert await complete_all(queue) == ["a0"], "it was there from the batch before"
    ended = [key async for key in redis.scan_iter(f"*{queue.name}*:once:*:0:ended")]
    assert len(ended) == COUNT
    run = ended[0].partition(b":once:")[2].removesuffix(b":ended")
    for shard in queue.shards:
        assert await engine_of(shard).bulk.add_once(run, [b"late", *NEW]) == [2], "a late task adds nothing"


# -------------------------------------------------------------------------------------- snapshots and results


async def test_a_snapshot_has_a_partition_for_each_shard_and_the_name_of_the_queue(
    spark: SparkSession, queue: AsyncWorkQueue, name: str
) -> None:
    await queue.add_items([Item(b"x", id=f"i{number}") for number in range(100)])
    await queue.lease_many(10, 60)
    items = loaded(spark, queue)
    assert items.rdd.getNumPartitions() == COUNT
    assert {row.id for row in items.collect()} == names(100)
    assert loaded(spark, queue, partitions=2 * COUNT).rdd.getNumPartitions() == 2 * COUNT
    assert loaded(spark, queue, partitions=2 * COUNT).count() == 100
    assert sorted(row.id for row in loaded(spark, queue, ids="i3,i44,none").collect()) == ["i3", "i44"]
    for options in ({"queuePattern": f"{name}*"}, {"queues": name}):
        given = {"url": queue.url, "states": "leased", **options}
        several = spark.read.format("leasequeue").options(**given).load()
        assert several.groupBy("queue").count().collect() == [(name, 10)]
    first = queue.shards[0]
    alone = loaded(spark, first)
    assert alone.count() == (await first.counts()).total, "the name of a shard is that of one queue"


async def test_calls_of_tasks_and_their_results(spark: SparkSession, redis_url: str, name: str) -> None:
    """The shards are those of the task's queue, which Spark may be the first to use."""
    async with TaskQueue.from_url(redis_url, name, shards=COUNT) as tasks:

        @tasks.task
        async def double(number: int) -> int:
            return 2 * number

        table = spark.range(60).selectExpr("id number", "concat('n', id) name")
        assert add_task(table, double, url=redis_url, idColumn="name").added == 60
        await Worker(tasks).drain()
        found = task_results(table, double, url=redis_url, idColumn="name").collect()
        assert {row.id: row.result for row in found} == {f"n{n}": 2 * n for n in range(60)}
        assert min([len(await shard.inspect(count=1)) == 0 for shard in tasks.queue.shards])


# ------------------------------------------------------------------------------------ streams and `process`


async def test_a_stream_leases_from_all_shards(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis, tmp_path: Path
) -> None:
    await queue.add_items([Item(b"x", id=f"i{number}") for number in range(100)])
    batches = drained(stream(spark, queue, maxItemsPerTrigger=40, partitions=2), tmp_path)
    assert [len(rows) for _, rows in batches] == [40, 40, 20]
    for _, rows in batches[:2]:
        parts = Counter(queue.shard_of(row["id"]).name for row in rows)
        assert min(parts.values()) >= 9, "each has its part"
        assert len(parts) == COUNT
    assert sorted(ids(batches)) == sorted(names(100))
    assert sum((await queue.counts())[:3]) == 0
    for shard in queue.shards:
        await audit(redis, shard.name)
    assert drained(stream(spark, queue), tmp_path) == []


@pytest.mark.parametrize(
    ("count", "rooms", "parts"),
    [
        (10, [10, 10], [5, 5]),
        (10, [1, 20, 3], [1, 6, 3]),
        (2, [5, 5, 5, 5], [0, 0, 1, 1]),
        (9, [2, 2], [2, 2]),
        (0, [3], [0]),
        (5, [], []),
    ],
)
def test_parts_are_as_equal_as_the_rooms_allow(count: int, rooms: list[int], parts: list[int]) -> None:
    assert fair_parts(count, rooms) == parts


async def test_what_is_left_of_a_batch_is_found_in_its_shards(queue: AsyncWorkQueue) -> None:
    """A query was killed while it leased. Nothing is leased twice, nor more than a batch may have."""
    await queue.add_items([Item(b"x", id=f"i{number}") for number in range(200)])

    def sets(reader: str) -> BatchSets:
        bulks = {shard.name: engine_of(shard).bulk for shard in queue.shards}
        made = {name: LeaseSets(bulk, "s", lease_ms=60_000, retry_timeout=10, reader=reader) for name, bulk in
                bulks.items()}  # fmt: skip
        return BatchSets(made)

    killed, again = sets("first"), sets("second")
    await killed.each(LeaseSets.take_over)
    first = queue.shards[0].name
    assert (await killed.sets[first].lease(1, 15)).size == 15
    await again.each(LeaseSets.take_over)
    batch = await again.lease(1, 40)
    assert sum(one.size for one in batch.values()) == 40
    assert (batch[first].found, batch[first].size) == (True, 15)
    assert (await queue.counts()).leased == 40
    await again.each(lambda one: one.complete(1))
    assert await queue.counts() == (160, 0, 0, 0)


async def test_a_worker_and_process_share_the_items(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.add_items([Item(b"x" * (number % 9), id=f"i{number}") for number in range(400)])
    by_worker: list[str] = []
    begun, batch_done, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()
    worker = Worker(concurrency=5)

    @worker.handler(queue)
    async def note(item: Item) -> None:
        by_worker.append(item.id)
        begun.set()
        await batch_done.wait()

    def go_on(_: str) -> None:
        loop.call_soon_threadsafe(batch_done.set)

    runs = asyncio.create_task(worker.run())
    await begun.wait()
    output = str(tmp_path / "output")
    done = await asyncio.to_thread(
        process, spark, size, kind="item", queue=queue.name, url=queue.url, output=output, batch=80,
        schema="id string, bytes int", progress=go_on,
    )  # fmt: skip
    await until("the worker has done the rest", lambda: is_empty(queue))
    worker.stop()
    await runs
    in_output = [row.id for row in spark.read.parquet(output).collect()]
    dead = [letter.id for letter in await queue.dead_letters.list(count=1000)]
    assert by_worker
    assert in_output
    assert sorted(in_output + dead + by_worker) == sorted(names(400)), "each once"
    assert (done.items, done.dead) == (len(in_output) + len(dead), len(dead))


async def is_empty(queue: AsyncWorkQueue) -> bool:
    return sum((await queue.counts())[:3]) == 0


def size(item: Row) -> dict[str, Any]:
    if len(item.data) == 3:
        raise Reject("no threes")
    return {"id": item.id, "bytes": len(item.data)}


async def test_outcomes_are_those_of_the_item_of_a_group(
    spark: SparkSession, by_group: AsyncWorkQueue, tmp_path: Path
) -> None:
    """An id is unique in its group alone: another item of the id has another outcome."""
    await by_group.events.keep(count=10_000)
    groups = [f"g{number}" for number in range(12)]
    for number, group in enumerate(groups):
        await by_group.add_item(Item(b"xxx" if number < 6 else b"xx", id=f"same-{number % 6}"), group=group)
    output = str(tmp_path / "output")
    added = (await by_group.counts()).waiting
    done = process(
        spark, size, kind="item", queue=by_group.name, url=by_group.url, output=output,
        schema="id string, bytes int",
    )  # fmt: skip
    found = loaded(spark, by_group, states="dead").select("id", "group").collect()
    assert (done.items, done.dead) == (added, len(found))
    assert {row.group for row in found} == {*groups[:6]}
    assert (await by_group.counts())[:3] == (0, 0, 0)
    given: dict[str, Any] = {"queue": by_group.name, "url": by_group.url}
    again = redrive(spark, **given, where="`group` = 'g2'")
    assert (again["chosen"], again["requeued"]) == (1, 1)
    assert [view.group for view in await by_group.inspect()] == ["g2"]
    rows = loaded(spark, by_group, ids="same-1").collect()
    assert [(row.state, row.group) for row in rows] == [("dead", "g1")]
    totals, now = ItemHistory(loaded(spark, by_group, **{"from": "events"})).totals()
    assert (totals["ids"], totals["completed"], totals["dead_letters"]) == (added, added - 6, 6)
    assert (now["dead"], now["waiting"]) == (5, 1)


# ----------------------------------------------------------------------------------------------------- events


async def test_events_are_read_once_and_resumed(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    given = {"from": "events", "maxEventsPerTrigger": 30}
    await queue.events.keep(count=100_000)
    await queue.add_items([Item(b"x", id=f"i{number}") for number in range(50)])
    batches: Batches = []
    writer = stream(spark, queue, **given).writeStream.trigger(availableNow=True)
    query = writer.foreachBatch(lambda rows, number: batches.append((number, rows.collect())))
    ended = query.option("checkpointLocation", str(tmp_path)).start()
    ended.awaitTermination()
    assert [len(rows) for _, rows in batches] == [30, 20]
    behind = [one for progress in ended.recentProgress for one in backlogs(progress)]
    assert [(one.queue, one.behind) for one in behind[:2]] == [(queue.name, 20), (queue.name, 0)]
    await complete_all(queue)
    batches += drained(stream(spark, queue, **given), tmp_path)
    rows = [row for _, batch in batches for row in batch]
    assert len(rows) == len({(row["shard"], row["number"]) for row in rows}) == 150
    for place, shard in enumerate(queue.shards):
        mine = [row["number"] for row in rows if row["shard"] == place]
        assert mine == sorted(mine)
        assert all(queue.shard_of(row["id"]) is shard for row in rows if row["shard"] == place)
    table = loaded(spark, queue, **{"from": "events"})
    assert table.select("shard", "number", "what").distinct().count() == table.count() == 150
    reader = EventsReader({"queue": queue.name, "url": str(queue.url), "from": "events"}, EVENTS)
    try:
        newest = reader.reportLatestOffset()
        start = reader.initialOffset()
        assert (newest["number"] - start["number"], len(newest["numbers"])) == (150, COUNT)
        assert reader.latestOffset(start, ReadMaxRows(7))["number"] == start["number"] + 7
        other = {"queue": queue.name, "number": 3, "numbers": [1, 2]}
        with pytest.raises(InvalidArgument, match="that of 2 shards', expected a new folder"):
            reader.partitions(other, newest)
    finally:
        reader.stop()


async def test_an_archive_and_a_report_have_the_events_of_all_shards(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.events.keep(count=100_000)
    await queue.add_items([Item(b"x", id=f"i{number}") for number in range(40)])
    given: dict[str, Any] = {"queue": queue.name, "url": queue.url}
    assert archive(spark, output=str(tmp_path / "archive"), **given)["events"] == 40
    await complete_all(queue)
    assert archive(spark, output=str(tmp_path / "archive"), **given)["events"] == 80
    found = report(spark, str(tmp_path / "report"), events=str(tmp_path / "archive"))
    assert (found["ids"], found["added"], found["completed"]) == (40, 40, 40)
    assert found["wait_p50"] is not None
    live = report(spark, str(tmp_path / "live"), **given)
    assert (live["ids"], live["completed"], live["now"]["waiting"]) == (40, 40, 0)


# ------------------------------------------------------------------------------------------- on three masters


def read_all(reader: Any, parts: Any) -> list[dict[str, Any]]:
    """Read partitions as executors do."""
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def streamed(reader: Any, maximum: int) -> list[list[dict[str, Any]]]:
    """Read a stream to its end, as Spark does; return the rows of each batch."""
    at, batches = reader.initialOffset(), []
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(at, ReadMaxRows(maximum))) != at:
        batches.append(read_all(reader, reader.partitions(at, end)))
        at = end
    reader.stop()
    return batches


async def test_all_is_done_once_on_a_cluster(cluster: RedisCluster, nodes: list[Redis]) -> None:
    """What Spark calls, without Spark."""
    where = {"url": f"redis://127.0.0.1:{port_of(nodes[1])}", "cluster": "true"}
    given = {**where, "queue": "jobs"}
    async with AsyncWorkQueue("jobs", cluster, shards=6) as queue:
        await queue.events.keep(count=100_000)
        writer = writer_of(queue, **given, job="nightly")
        first, again = written(writer, made(900)), written(writer, made(900))
        assert (first.added, again.added, again.repeated) == (900, 0, 900)
        await asyncio.to_thread(writer.commit, [first])
        table = SnapshotsReader({**where, "queuePattern": "jo*"}, QUEUED_ITEMS)
        rows = await asyncio.to_thread(lambda: read_all(table, table.partitions()))
        assert sorted((row["queue"], row["id"]) for row in rows) == sorted(
            ("jobs", one) for one in names(900)
        )
        batches = await asyncio.to_thread(streamed, LeasesReader(given, ITEMS), 400)
        assert [len(batch) for batch in batches] == [400, 400, 100]
        assert {row["id"] for batch in batches for row in batch} == names(900)
        events = await asyncio.to_thread(streamed, EventsReader({**given, "from": "events"}, EVENTS), 1000)
        counts = Counter(row["what"] for batch in events for row in batch)
        assert [counts[what] for what in ("added", "leased", "completed")] == [900] * 3
        assert sum((await queue.counts())[:3]) == 0
