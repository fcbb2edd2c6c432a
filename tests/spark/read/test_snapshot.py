"""Snapshots: each item once, in every state; filters; nothing is changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql.types import StringType, StructField, StructType

from leasequeue import Item
from leasequeue.queue.queue import engine_of
from leasequeue.spark.read.snapshot import ItemFilter, look_up
from leasequeue.spark.schema import ITEMS
from tests.lua.space import Space
from tests.queue.asking import take
from tests.spark.streaming import drained, stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue


def snapshot(
    spark: SparkSession, queue: AsyncWorkQueue, schema: StructType | str | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("leasequeue").options(url=queue.url, queue=queue.name, **options)
    return (reader.schema(schema) if schema else reader).load()


async def states(queue: AsyncWorkQueue) -> None:
    """Put an item into each state."""
    await queue.add_items([Item(b"died", id="d"), Item(b"held", id="l"), Item(b"back", id="b")])
    dead, held, back = [await take(queue, 600) for _ in range(3)]
    assert await queue.fail(dead, "an error", retry_in=None)
    assert (held.id, back.id) == ("l", "b")
    assert await queue.release(back)
    await queue.add_item(Item(b"new", id="w"))
    await queue.add_item(Item(b"later", id="s"), delay=900)


@pytest.fixture
async def unchanged(redis: Redis, queue: AsyncWorkQueue) -> AsyncIterator[None]:
    """Put an item into each state, and check that snapshots change nothing."""
    await states(queue)
    space = Space(redis, queue.name)
    before = await space.snapshot()
    yield
    assert await space.snapshot() == before


@pytest.mark.usefixtures("unchanged")
async def test_items_of_every_state_are_rows(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    rows = {row["id"]: row for row in snapshot(spark, queue).collect()}
    found = {item_id: (row["state"], bytes(row["data"]), row["size"]) for item_id, row in rows.items()}
    assert found == {
        "b": ("waiting", b"back", 4),
        "d": ("dead", b"died", 4),
        "l": ("leased", b"held", 4),
        "s": ("scheduled", b"later", 5),
        "w": ("waiting", b"new", 3),
    }
    seen = {item_id: (row["attempt"], row["token"]) for item_id, row in rows.items()}
    assert seen == {"b": (0, 3), "d": (1, 1), "l": (1, 2), "s": (0, None), "w": (0, None)}
    assert rows["d"]["error"].endswith("an error")
    assert [rows[item_id]["error"] for item_id in "blsw"] == [None] * 4
    assert (rows["l"]["holder"], rows["w"]["holder"]) == (queue.session, None)
    now, _ = await redis.time()
    assert 500 < rows["l"]["due"].timestamp() - now <= 601
    assert 800 < rows["s"]["due"].timestamp() - now <= 901
    assert rows["w"]["due"] is None
    assert all(0 <= rows[item_id]["age"] < 60 for item_id in "bdl")
    assert rows["w"]["age"] is None


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ("state = 'waiting'", "bw"),
        ("state = 'leased'", "l"),
        ("state in ('dead', 'scheduled')", "ds"),
        ("state = 'nowhere'", ""),
        ("state = 'dead' and state = 'leased'", ""),
        ("id = 'l'", "l"),
        ("id in ('w', 'd', 'missing')", "dw"),
        ("id = 'w' and state = 'leased'", ""),
        ("id = ''", ""),
        ("id like 'w%'", "w"),
        ("age >= 0", "bdl"),
        ("age > 3600", ""),
        ("age < 3600 and age > -1", "bdl"),
        ("age <= 3600 and state != 'dead'", "bl"),
        ("age is null", "sw"),
        ("size > 4", "s"),
        ("state = 'waiting' and size = 3", "w"),
        ("state = 'waiting' or id = 'l'", "blw"),
    ],
)
@pytest.mark.seed("GLD-O13")
async def test_filters_select_rows(
    spark: SparkSession, queue: AsyncWorkQueue, condition: str, ids: str
) -> None:
    found = snapshot(spark, queue).where(condition).collect()
    assert sorted(row["id"] for row in found) == [*ids]


@pytest.mark.usefixtures("unchanged")
async def test_a_query_does_not_take_filters_of_another_query_of_the_same_table(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    """Spark plans a table once, and all queries of it read what was planned."""
    table = snapshot(spark, queue)
    waiting, leased = table.where("state = 'waiting'"), table.where("id = 'l'")
    assert waiting.count() == 2
    assert table.count() == 5
    assert table.groupBy("state").count().count() == 4
    assert sorted(row.id for row in waiting.union(leased).collect()) == ["b", "l", "w"]
    assert leased.join(table, "state").count() == 1


@pytest.mark.usefixtures("unchanged")
async def test_fewer_columns_and_data_as_text(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    rows = snapshot(spark, queue, "state string, data string").where("state = 'leased'").collect()
    assert [(*row,) for row in rows] == [("leased", "held")]


async def test_data_are_not_sent_without_their_column(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_items([Item(bytes(1 << 20), id=f"{n}") for n in range(20)])

    async def sent(schema: str) -> int:
        before = int((await redis.info("stats"))["total_net_output_bytes"])
        rows = snapshot(spark, queue, schema).collect()
        assert {row["size"] for row in rows} == {1 << 20}
        return int((await redis.info("stats"))["total_net_output_bytes"]) - before

    assert await sent("id string, size long") < 1 << 18
    assert await sent("data binary, size long") > 20 << 20


async def test_data_of_items_that_are_too_young_are_not_sent(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_items([Item(bytes(1 << 20), id=f"{n}") for n in range(8)])
    await queue.lease_many(8, 600)
    before = int((await redis.info("stats"))["total_net_output_bytes"])
    assert snapshot(spark, queue, minAge=3600).collect() == []
    assert int((await redis.info("stats"))["total_net_output_bytes"]) - before < 1 << 18


async def test_data_larger_than_a_reply_are_complete(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    sizes = {"small": 10, "large": 12 << 20, "other": 5 << 20, "empty": 0, "more": 5 << 20}
    await queue.add_items([Item(bytes(size), id=item_id) for item_id, size in sizes.items()])
    rows = snapshot(spark, queue).selectExpr("id", "size", "length(data) as length").collect()
    assert {row["id"]: row["length"] for row in rows} == {row["id"]: row["size"] for row in rows} == sizes


async def test_many_items_are_divided_into_partitions(spark: SparkSession, queue: AsyncWorkQueue) -> None:
    ids = {f"i{n}" for n in range(5_000)}
    await queue.add_items([Item(b"x", id=item_id) for item_id in ids])
    table = snapshot(spark, queue, partitions=3)
    rows = table.selectExpr("id", "spark_partition_id() as part").collect()
    assert len(rows) == 5_000
    assert {row["id"] for row in rows} == ids
    assert {row["part"] for row in rows} == {0, 1, 2}
    assert snapshot(spark, queue).rdd.getNumPartitions() == 1


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"states": "waiting"}, "bw"),
        ({"states": " dead,scheduled "}, "ds"),
        ({"ids": "l"}, "l"),
        ({"ids": "w, d,missing"}, "dw"),
        ({"ids": "w, l", "states": "leased"}, "l"),
        ({"minAge": 0.001}, "bdl"),
        ({"minAge": 3600}, ""),
        ({"maxAge": 3600, "states": "leased, waiting"}, "bl"),
        ({"maxAge": 1e-9}, ""),
    ],
)
async def test_options_select_rows(
    spark: SparkSession, queue: AsyncWorkQueue, options: dict[str, Any], ids: str
) -> None:
    found = snapshot(spark, queue, **options)
    assert sorted(row["id"] for row in found.collect()) == [*ids]
    assert found.where("state = 'dead'").count() == ids.count("d")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": "waiting, waitng"}, "states: .*waiting, leased"),
        ({"states": ""}, "states: .*waiting, leased"),
        ({"ids": " , "}, "ids: .*commas"),
        ({"minAge": "old"}, "minAge: .*seconds"),
        ({"maxAge": 0}, "maxAge: .*more than 0"),
    ],
)
def test_options_that_select_nothing_are_refused(
    spark: SparkSession, queue: AsyncWorkQueue, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        snapshot(spark, queue, **options)


def test_a_stream_refuses_the_options_that_select(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    """It leases in the queue's order."""
    with pytest.raises(StreamingQueryException, match=r"option: .*states"):
        drained(stream(spark, queue, states="waiting"), tmp_path / "checkpoint")


async def test_options_of_items_and_dead_letters_are_columns(
    spark: SparkSession, queue: AsyncWorkQueue, tmp_path: Path
) -> None:
    await queue.add_item(Item(b"x", id="x"), priority=-9, group="ann", expires_in=600)
    await queue.fail(await take(queue), "an error")
    await queue.add_item(Item(b"y", id="y"), priority=9, group="ann", expires_in=600)
    await queue.add_item(Item(b"z", id="z"))
    chosen = ("id", "state", "priority", "group", "expires")
    table = snapshot(spark, queue).select(*chosen).orderBy("id")
    (one, other, plain) = table.collect()
    assert (*one,)[:4] == ("x", "dead", -9, "ann")
    assert (*other,)[:4] == ("y", "waiting", 9, "ann")
    assert (*plain,) == ("z", "waiting", 0, None, None)
    found = await queue.find("y")
    assert found is not None
    assert found.expires is not None
    assert other.expires.timestamp() == pytest.approx(found.expires, abs=0.001)
    for condition, ids in (
        ("priority > 0", "y"),
        ("`group` = 'ann' and state = 'dead'", "x"),
        ("`group` = 'ann' and id in ('y', 'z')", "y"),
        ("expires is null", "xz"),  # once leased, an item does not expire
    ):
        assert [row.id for row in table.where(condition).collect()] == [*ids]
    rows = stream(spark, queue).select("id", "priority", "group", "expires")
    [(_, leased)] = drained(rows, tmp_path / "checkpoint")
    assert sorted((row.id, row.priority, row.group) for row in leased) == [("y", 9, "ann"), ("z", 0, None)]
    assert {row.id: row.expires for row in leased} == {"y": other.expires, "z": None}


async def test_ids_and_errors_of_any_bytes(spark: SparkSession, queue: AsyncWorkQueue, redis: Redis) -> None:
    await redis.set(f"{queue.name}:item:".encode() + b"\xff", b"\xfe")
    await redis.lpush(f"{queue.name}:queue", b"\xff")
    await queue.add_item(Item("ü", id="a\n\0ü"))
    rows = snapshot(spark, queue, StructType([ITEMS["id"], StructField("data", StringType())])).collect()
    assert {(row["id"], row["data"]) for row in rows} == {("\\xff", "\ufffd"), ("a\n\0ü", "ü")}


async def test_items_leased_by_foreign_clients_are_rows(
    spark: SparkSession, queue: AsyncWorkQueue, redis: Redis
) -> None:
    """A foreign client keeps no deadline. A ghost is not an item."""
    prefix = queue.name
    await redis.set(f"{prefix}:item:f", b"theirs")
    await redis.lpush(f"{prefix}:processing", "f")
    await redis.set(f"{prefix}:lease:f", "another", px=600_000)
    await redis.lpush(f"{prefix}:queue", "ghost")
    (row,) = snapshot(spark, queue).collect()
    assert (row["id"], row["state"], row["holder"]) == ("f", "leased", "another")


async def test_an_id_that_died_and_was_added_again_is_two_rows(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    await states(queue)
    await queue.add_item(Item(b"again", id="d"))

    def select(condition: str = "true", **options: Any) -> list[tuple[str, str, bytes, str | None]]:
        rows = snapshot(spark, queue, **options).where(condition).collect()
        return sorted(
            (row["id"], row["state"], bytes(row["data"]), row["error"] and row["error"][-8:]) for row in rows
        )

    both = [("d", "dead", b"died", "an error"), ("d", "waiting", b"again", None)]
    assert select("id = 'd'") == both
    assert [row for row in select(partitions=2) if row[0] == "d"] == both
    assert len(select()) == 6
    assert select("state = 'dead'") == both[:1]
    assert select("id = 'd' and state != 'dead'") == both[1:]
    assert select("id = 'd' and age >= 0") == both[:1]
    assert select(ids="d") == both
    assert select(ids="d", states="dead") == select(ids="d", minAge=0.001) == both[:1]
    assert select(ids="d", states="waiting, leased") == both[1:]


async def test_a_dead_letter_and_its_leased_item_are_one_row_each_also_when_selected_by_age(
    queue: AsyncWorkQueue,
) -> None:
    for data in (b"died", b"held"):
        await queue.add_item(Item(data, id="a"))
        lease = await take(queue, 600)
        if data == b"died":
            await queue.fail(lease, "an error")
    rows = await look_up(engine_of(queue).bulk, [b"a"], ItemFilter(max_age=3600), data=True)
    assert sorted(row[:3] for row in rows) == [(b"a", "dead", b"died"), (b"a", "leased", b"held")]


async def test_data_of_a_dead_letter_and_its_item_larger_than_a_reply(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    sizes = {"a": (5 << 20, 6 << 20), "b": (9 << 20, 10), "c": (10, 3 << 20)}
    for item_id, (dead, _) in sizes.items():
        await queue.add_item(Item(bytes(dead), id=item_id))
        await queue.fail(await take(queue, 600), "an error", retry_in=None)
    await queue.add_items([Item(bytes(live), id=item_id) for item_id, (_, live) in sizes.items()])
    rows = snapshot(spark, queue).selectExpr("id", "state", "length(data) as length").collect()
    assert len(rows) == 6
    found = {(row["id"], row["state"]): row["length"] for row in rows}
    assert {item_id: (found[item_id, "dead"], found[item_id, "waiting"]) for item_id in sizes} == sizes


async def test_each_id_at_most_once_while_workers_change_everything(
    spark: SparkSession, queue: AsyncWorkQueue
) -> None:
    """Items that stay in their state are always included."""
    still = {f"still{n}" for n in range(3_000)}
    await queue.add_items([Item(b"x", id=item_id) for item_id in still], delay=3600)
    moving = {f"moving{n}" for n in range(3_000)}
    await queue.add_items([Item(b"x", id=item_id) for item_id in moving])
    over = asyncio.Event()

    async def work(number: int) -> None:
        while not over.is_set():
            leases = await queue.lease_many(100, 60)
            for at, lease in enumerate(leases):
                if at % 3 == number:
                    await queue.fail(lease, "no", retry_in=None)
                    await queue.dead_letters.requeue(lease.id)
                elif at % 3 == 1:
                    await queue.complete(lease)
                    await queue.add_item(Item(b"x", id=lease.id))
                else:
                    await queue.release(lease)

    workers = [asyncio.create_task(work(number)) for number in range(2)]
    try:
        for _ in range(5):
            rows = await asyncio.to_thread(lambda: snapshot(spark, queue, partitions=2).collect())
            met = [row["id"] for row in rows]
            assert len(met) == len({*met})
            assert still <= {*met} <= still | moving
            assert len({*met} & moving) > 2_000, "nearly all moving items"
    finally:
        over.set()
        await asyncio.gather(*workers)
