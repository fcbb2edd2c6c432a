"""What the outbox costs: rows that are inserted and relayed, beside the same calls added without it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from benchmarks.measure import COSTS, Sample, metered, speed_row, take_turns
from leasequeue import TaskQueue
from leasequeue.outbox import BATCH_ROWS, Outbox
from tests.postgres import running_postgres

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.bench import Bench
    from benchmarks.measure import Row, Setting
    from leasequeue import Call

#: The rows of one transaction.
TRANSACTION = 10


async def send_mail(to: str) -> None:
    """Stand for a task."""


async def outbox(bench: Bench) -> list[Row]:
    """Measure PostgreSQL, which does not wait for its disk, a relay, and `add_many` of the same calls."""
    count = bench.scaled(10_000, 500)
    with running_postgres() as server:
        async with TaskQueue.from_url(bench.url(), bench.name()) as tasks:
            box = Outbox(tasks)
            with psycopg.connect(server.location) as connection:
                connection.execute(box.ddl)
            task = tasks.task(send_mail)
            calls = [task.call(f"{number}@example.org") for number in range(count)]
            samples: dict[str, list[Sample]] = {"inserted": [], "relayed": [], "added without": []}

            async def round_with() -> None:
                async with metered(bench.redis, count) as inserted:
                    await asyncio.to_thread(insert, box, server.location, calls)
                async with metered(bench.redis, count) as relayed:
                    assert await box.relay(server.location).drain() == count
                samples["inserted"].append(inserted)
                samples["relayed"].append(relayed)

            async def round_without() -> None:
                async with metered(bench.redis, count) as added:
                    for at in range(0, count, BATCH_ROWS):
                        await tasks.add_many(calls[at : at + BATCH_ROWS])
                samples["added without"].append(added)

            turns = [partial(_emptied, tasks, turn) for turn in (round_with, round_without)]
            await take_turns(bench.scaled(5, 2), turns)
    setting: Setting = {"rows in a transaction": TRANSACTION, "rows of a relay": BATCH_ROWS}
    costs = (*COSTS, "trips_per_item")
    return [speed_row(what, its, "calls/s", costs, setting=setting) for what, its in samples.items()]


async def _emptied(tasks: TaskQueue, turn: Callable[[], Awaitable[None]]) -> None:
    await turn()
    await tasks.queue.admin.purge()


def insert(box: Outbox, database: str, calls: list[Call[None]]) -> None:
    """Insert calls, some in each transaction."""
    with psycopg.connect(database) as connection:
        for at in range(0, len(calls), TRANSACTION):
            for call in calls[at : at + TRANSACTION]:
                box.add(connection, call)
            connection.commit()
