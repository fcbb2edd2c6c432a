"""A query that drains a queue, with each process killed at each step of a micro-batch.

The table of what was written is right by its ids; nothing stays leased; an item is read again only as part of
the batch that it was in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pyarrow.dataset
import pytest
from redis.asyncio import Redis

from leasequeue import AsyncWorkQueue, Item
from tests.faults.test_killed_server import start
from tests.queue.asking import command
from tests.queue.keyspace import audit, left_over
from tests.spark.programs.faults import STEPS
from tests.spark.programs.runs import Runs, names_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.conftest import MakeServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3600)]

ROWS = 50
IDS = [f"i{number}" for number in range(10 * ROWS)]
#: Each step, in a separate batch.
FAULTS = [f"{step}:{batch}" for batch, step in enumerate(STEPS, 2)]
#: The steps of the first batch, in runs on one checkpoint, each killed one step later than the one before. A
#: batch that is killed when it is logged is repeated without items: later steps need another checkpoint.
FIRST = (
    ("before:1", "planned:1", "logged:1"),
    ("mid_lease:1", "divided:1", "read:1", "after_write:1", "after_commit:1"),
)


class Drain(Runs):
    """Runs of the program, one after the other, on one checkpoint."""

    def written(self) -> list[str]:
        """Return the ids of the table."""
        table = pyarrow.dataset.dataset(self.folder / "out", partitioning="hive").to_table(columns=["id"])
        return sorted(table["id"].to_pylist())

    def read(self) -> dict[str, set[str]]:
        """Return the batches in which each id was read."""
        batches: dict[str, set[str]] = defaultdict(set)
        for journal in self.notes.glob("read-*"):
            for line in journal.read_text().splitlines():
                batch, item_id = line.split()
                batches[item_id].add(batch)
        return batches


@pytest.fixture
def shards() -> int | None:
    """Return how many shards the queue has; tests may set another."""
    return None


@pytest.fixture
async def drain(make_server: MakeServer, tmp_path: Path, name: str, shards: int | None) -> Drain:
    """Return a queue with items on a persistent server, and a query that drains it."""
    server = await start(make_server, tmp_path / "data")
    async with AsyncWorkQueue.from_url(server.url, name, shards=shards) as queue:
        await queue.events.keep(count=1_000_000)
        await queue.add_items([Item(f"data of {item_id}", id=item_id) for item_id in IDS])
    return Drain(tmp_path, server, "tests.spark.programs.drain_program", name, str(tmp_path), str(ROWS))


async def check(drain: Drain, name: str, faults: Sequence[str], shards: int | None = None) -> None:
    assert drain.done == names_of(faults)
    assert drain.written() == sorted(IDS), "each id once"
    read = drain.read()
    assert read.keys() == {*IDS}
    assert all(len(batches) == 1 for batches in read.values()), "read again only in the same batch"
    async with (
        Redis.from_url(drain.server.url) as redis,
        AsyncWorkQueue.from_url(drain.server.url, name, shards=shards) as queue,
    ):
        counts = Counter([(event.what, event.id) async for event in queue.events(follow=False)])
        assert {what for what, _ in counts} <= {"added", "leased", "renewed", "completed"}
        assert all(counts["leased", item_id] == counts["completed", item_id] == 1 for item_id in IDS)
        for shard in queue.shards:
            await audit(redis, shard.name)
            left = await left_over(redis, shard.name)
            prefix = f"{shard.name}:".encode()
            kept = {prefix + b"events", prefix + b"events:keep", prefix + b"shards"}
            assert {key.removeprefix(prefix).partition(b":")[0] for key in left - kept} == {b"stream"}


@pytest.mark.parametrize("victim", ["driver", "jvm"])
async def test_the_driver_or_its_jvm_is_killed_at_each_step(drain: Drain, name: str, victim: str) -> None:
    for number, fault in enumerate(FAULTS, 1):
        assert await drain.run(victim, [fault]) != 0
        assert len(drain.done) == number
    assert await drain.run(victim, []) == 0, drain.log
    await check(drain, name, FAULTS)


@pytest.mark.parametrize("shards", [2])
async def test_the_driver_is_killed_at_each_step_of_a_queue_with_shards(
    drain: Drain, name: str, shards: int
) -> None:
    """What is leased of a batch, in one shard or in both, is found again."""
    faults = ["mid_lease:1", "after_write:1", "mid_lease:3", "logged:4", "after_commit:5"]
    for fault in faults:
        assert await drain.run("driver", [fault]) != 0
    assert await drain.run("driver", []) == 0, drain.log
    await check(drain, name, faults, shards)


@pytest.mark.parametrize("victim", ["driver", "jvm", "worker"])
@pytest.mark.parametrize("faults", FIRST, ids=["before its leases", "from its leases on"])
async def test_a_new_query_is_killed_at_each_step_of_its_first_batch(
    drain: Drain, name: str, victim: str, faults: Sequence[str]
) -> None:
    """The next run finds what is leased: a run that ends without an error has drained the queue."""
    if (
        victim == "worker"
    ):  # the one that leases; those of executors are run again, and the sink is in the driver
        faults = [fault for fault in faults if fault.partition(":")[0] not in ("read", "after_write")]
    for fault in faults:
        assert await drain.run(victim, [fault]) != 0
        assert drain.done == names_of(faults[: faults.index(fault) + 1])
    assert await drain.run(victim, []) == 0, drain.log
    await check(drain, name, faults)


async def test_workers_of_executors_are_killed_while_they_read(drain: Drain, name: str) -> None:
    faults = ["read:1", "read:2", "read:5", "read:8"]
    assert await drain.run("worker", faults) == 0, drain.log
    await check(drain, name, faults)


async def test_the_process_that_leases_is_killed_at_each_step(drain: Drain, name: str) -> None:
    """It is a worker of the driver: the query fails, and a new run continues."""
    faults = ["before:2", "mid_lease:3", "planned:4", "after_commit:5"]
    for fault in faults:
        assert await drain.run("worker", [fault]) != 0
    assert await drain.run("worker", []) == 0, drain.log
    await check(drain, name, faults)


async def test_the_query_survives_a_killed_server_at_each_step(
    drain: Drain, name: str, make_server: MakeServer
) -> None:
    assert await drain.run_while_the_server_dies(FAULTS, make_server) == 0, drain.log
    await check(drain, name, FAULTS)


async def test_items_leased_by_other_clients_are_left_to_them(drain: Drain, name: str) -> None:
    """A repeated batch leaves out items that others completed, and includes those that wait again."""
    assert await drain.run("driver", ["after_write:2"]) != 0
    async with (
        Redis.from_url(drain.server.url) as redis,
        AsyncWorkQueue.from_url(drain.server.url, name) as queue,
    ):
        mine = await items_of_the_set(redis, name)
        # Two leases expire now. Another client leases one of the items and completes it.
        for item_id in mine[:2]:
            await command(redis, "ZADD", f"{name}:deadlines", 1, item_id)
        await queue.light_clean()
        await command(redis, "LREM", f"{name}:queue", 0, mine[0])
        await command(redis, "RPUSH", f"{name}:queue", mine[0])
        lease = await queue.lease(30, block=False)
        assert lease is not None
        assert lease.id == mine[0]
        await queue.complete(lease)
    assert await drain.run("driver", []) == 0, drain.log
    assert drain.written() == sorted({*IDS} - {mine[0]})
    assert not {item_id for item_id, batches in drain.read().items() if len(batches) > 1}


async def items_of_the_set(redis: Redis, name: str) -> list[str]:
    """Return the ids of the only set."""
    [key] = [key async for key in redis.scan_iter(match=f"{name}:set:*")]
    entries: list[bytes] = await command(redis, "LRANGE", key, 0, -1)
    return [entry.decode().partition(" ")[2] for entry in entries]
