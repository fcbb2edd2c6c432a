"""Bulk adds: Spark with the format, beside one plain process and beside what is written by hand."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks.measure import command_stats, stats_between
from benchmarks.spark.rows import speed
from benchmarks.spark.session import PAYLOAD, table, timed
from leasehold.keys import QueueKeys
from leasehold.scripting.runner import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.bench import Bench
    from benchmarks.rows import Who
    from benchmarks.spark.rows import SparkRow

ROWS = 200_000
#: Items of a call of the plain process, and rows of a pipeline that is written by hand.
AT_ONCE = 1_000


async def run(bench: Bench, spark: SparkSession) -> list[SparkRow]:
    """Measure; all take turns."""
    count = bench.some(ROWS, 3_000)
    with table(spark, count) as df:
        contestants: dict[tuple[Who, str], Callable[[str], None]] = {
            ("leasehold", "add"): lambda name: by_format(df, bench.server_url, name),
            ("ceiling", "add"): Plain(bench.server_url, count, "add_once").add,
            ("ceiling", "add (add_items)"): Plain(bench.server_url, count, "add_items").add,
            ("bare", "add"): lambda name: by_hand(df, bench.server_url, name),
        }
        seconds: dict[tuple[Who, str], list[float]] = {who: [] for who in contestants}
        server: dict[tuple[Who, str], list[float]] = {who: [] for who in contestants}
        for number in range(1 + bench.some(7, 1)):
            order = list(contestants.items())
            for who, add in order if number % 2 == 0 else reversed(order):
                name = bench.name("spark")
                before = await command_stats(bench)
                took = timed(lambda add=add, name=name: add(name))  # type: ignore[misc]  # of this round
                between = stats_between(before, await command_stats(bench))
                assert await bench.redis.llen(f"{name}:queue") == count
                await bench.clear()
                if number:  # the first time is for warming up
                    seconds[who].append(took)
                    server[who].append(sum(between.get(one, (0, 0.0))[1] for one in ("eval", "evalsha")))
    setting = {"rows": count, "payload": PAYLOAD}
    return [
        speed(
            "bulk_add",
            what,
            who,
            dict(setting),
            items=count,
            seconds=seconds[who, what],
            server_us=server[who, what] if who != "bare" else (),
        )
        for who, what in contestants
    ]


def by_format(df: DataFrame, url: str, name: str) -> None:
    """As users do it."""
    df.write.format("leasehold").options(url=url, queue=name).mode("append").save()


class Plain:
    """A process that calls a script with finished arguments, 1,000 items a call, one after the other."""

    def __init__(self, url: str, count: int, script: str) -> None:
        self._redis = Redis.from_url(url)
        self._script = script
        self._calls = [
            [
                value
                for number in range(start, min(start + AT_ONCE, count))
                for value in (b"item-%d" % number, b"x" * PAYLOAD, b"0", b"0")
            ]
            for start in range(0, count, AT_ONCE)
        ]

    def add(self, name: str) -> None:
        """Add all."""
        bound = bind(self._script, QueueKeys(name, "lh:bench"))
        arguments: dict[str, bytes | int] = {
            "prefix": name.encode(),
            "now_ms": b"",
            "run": uuid.uuid4().hex.encode(),
            "keep_ms": 3_600_000,
        }
        self._redis.script_load(bound.script.body)
        for rows in self._calls:
            command: tuple[Any, ...] = (b"EVALSHA", bound.script.sha, *bound.tail(arguments, rows))
            self._redis.execute_command(*command)  # type: ignore[no-untyped-call]  # theirs has no types


def by_hand(df: DataFrame, url: str, name: str) -> None:
    """As it is written without the format: a pipeline, two commands a row. It is not safe to repeat."""

    def add(rows: Iterator[Any]) -> None:
        redis = Redis.from_url(url)
        pipeline = redis.pipeline(transaction=False)
        for row in rows:
            pipeline.set(f"{name}:item:{row.id}", bytes(row.data), nx=True)
            pipeline.lpush(f"{name}:queue", row.id)
            if len(pipeline) >= 2 * AT_ONCE:
                pipeline.execute()
        pipeline.execute()
        redis.close()

    df.foreachPartition(add)
