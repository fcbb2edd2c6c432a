"""Snapshots of several queues: of a list, or of all that match a pattern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from leasequeue import Item
from tests.spark.streaming import drained

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.queue.fixtures import MakeQueue


def loaded(spark: SparkSession, url: str | None, **options: Any) -> DataFrame:
    return spark.read.format("leasequeue").options(url=url, **options).load()


async def test_several_queues_are_read_by_a_list_or_a_pattern(
    spark: SparkSession, make_queue: MakeQueue
) -> None:
    first, second, other = (make_queue(name=f"{make_queue.name}-{end}") for end in ("s-a", "s-b", "s-other"))
    for number, one in enumerate((first, second, other)):
        await one.add_items([Item(b"text", id=f"i{number}"), Item(b"text", id="both")])
    expected = {(first.name, "i0"), (first.name, "both"), (second.name, "i1"), (second.name, "both")}
    by_list = loaded(spark, first.url, queues=f"{first.name}, {second.name}")
    by_pattern = loaded(spark, first.url, queuePattern=f"{make_queue.name}-s-?")
    for df in (by_list, by_pattern):
        rows = df.where("state = 'waiting'").select("id", "queue").collect()
        assert sorted((row.queue, row.id) for row in rows) == sorted(expected)
        assert df.where("id = 'i1'").select("queue").collect() == [(second.name,)]
        assert df.groupBy("queue").count().orderBy("queue").collect() == [(first.name, 2), (second.name, 2)]
    both = loaded(spark, first.url, queues=f"{second.name},{first.name}", ids="both", states="waiting, dead")
    assert sorted(row.queue for row in both.collect()) == [first.name, second.name]
    narrow = spark.read.format("leasequeue").schema("data string, queue string")
    rows = narrow.options(url=first.url, queues=first.name, partitions=2).load().collect()
    assert rows == [("text", first.name)] * 2
    await second.add_item(Item(b"text", id="later"))
    assert by_pattern.count() == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "a", "queues": "b"}, "got 'queue and queues', expected one of queue, queues and"),
        ({"queues": "a", "queuePattern": "b"}, "got 'queues and queuePattern', expected one of"),
        ({"queues": " , "}, "names of queues, with commas between them"),
        ({"queues": "a, b:item"}, "queue: .*b:item"),
        ({"queuePattern": ""}, "or a pattern with"),
        ({"queues": "a", "states": "waitng"}, "states: .*waiting, leased"),
        ({"queues": "a", "maxItemsPerTrigger": "5"}, "option: .*maxitemspertrigger"),
    ],
)
def test_options_that_name_no_queues_are_refused_when_the_table_is_loaded(
    spark: SparkSession, make_queue: MakeQueue, options: dict[str, str], message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        loaded(spark, make_queue().url, **options)


async def test_a_missing_queue_is_an_error_unless_it_may_be_missing(
    spark: SparkSession, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    await queue.add_item(Item(b"text", id="i"))
    missing = {"queues": f"{queue.name}, {queue.name}-no"}, {"queuePattern": f"{queue.name}-no-*"}
    for options, message, count in zip(missing, ("-no", "that the name of a queue"), (1, 0), strict=True):
        with pytest.raises(PySparkException, match=message):
            loaded(spark, queue.url, **options).count()
        assert loaded(spark, queue.url, **options, mayBeMissing=True).count() == count


async def test_only_a_snapshot_takes_several_queues(
    spark: SparkSession, make_queue: MakeQueue, tmp_path: Path
) -> None:
    queue = make_queue()
    given = {"url": queue.url, "queues": queue.name}
    rows = spark.sql("select 'i' as id, 'x' as data")
    with pytest.raises(PySparkException, match="did you mean 'queue'"):
        rows.write.format("leasequeue").options(**given).mode("append").save()
    with pytest.raises(StreamingQueryException, match="did you mean 'queue'"):
        drained(spark.readStream.format("leasequeue").options(**given).load(), tmp_path / "leases")
    events = spark.readStream.format("leasequeue").options(**given, **{"from": "events"})
    with pytest.raises(PySparkException, match="did you mean 'queue'"):
        events.load()
