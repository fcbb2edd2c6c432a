"""`leasequeue ls`, and the search for the queues of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from leasequeue import Item
from leasequeue.wire import discovery
from leasequeue.wire.discovery import find_queues
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue

TITLES = ["queue", "waiting", "leased", "scheduled", "dead"]


async def fill(queue: AsyncWorkQueue) -> None:
    """Leave 4 items waiting, 3 leased, 2 scheduled, and one dead letter."""
    await queue.add_items([Item(b"x") for _ in range(8)])
    await queue.add_items([Item(b"x") for _ in range(2)], delay=100)
    leases = await queue.lease_many(4, 100)
    await queue.fail(leases[0], "given up")


async def test_the_named_queues_are_counted(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await fill(queue)
    outcome = await leasequeue("ls", queue.name, "unused")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.table == [TITLES, [queue.name, "4", "3", "2", "1"], ["unused", "0", "0", "0", "0"]]


@pytest.mark.seed("RWQ-O23", "WRQ-O17")
async def test_without_names_the_queues_of_the_server_are_counted(
    leasequeue: Leasequeue, make_queue: MakeQueue
) -> None:
    busy, done = make_queue(name="a b:ü"), make_queue(name="{done}")
    await fill(busy)
    await done.add_item(Item(b"x"))
    await done.complete(await take(done))
    outcome = await leasequeue("ls", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert [line for line in outcome.documents if line["queue"] in (busy.name, done.name)] == [
        {"queue": "a b:ü", "waiting": 4, "leased": 3, "scheduled": 2, "dead": 1},
        {"queue": "{done}", "waiting": 0, "leased": 0, "scheduled": 0, "dead": 0},
    ]


async def test_a_queue_is_found_by_any_of_its_keys(make_queue: MakeQueue, redis_url: str) -> None:
    delayed, planned = make_queue(name="delayed"), make_queue(name="planned")
    await delayed.add_item(Item(b"x"), delay=100)
    await planned.schedules.every(100, "poll")
    assert {"delayed", "planned"} <= {*(await find_queues(redis_url)).names}


async def test_keys_that_only_look_like_a_queue_are_left_out(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    before = (await find_queues(redis_url)).names
    for item_id in ("other:queue", "other:dead", "other:fence"):
        await queue.add_item(Item(b"x", id=item_id))
        await queue.fail(await take(queue), "given up")
        await queue.add_item(Item(b"x", id=item_id))
    await redis.set("program:queue", "a string")
    await redis.rpush("program:fence", "a list")
    await redis.rpush(b"\xff:queue", "no text")
    await redis.rpush(":queue", "no name")
    assert {*(await find_queues(redis_url)).names} - {*before} == {queue.name}


async def test_a_search_stops_at_its_limits(
    make_queue: MakeQueue, redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "STEP_KEYS", 10)
    for number in range(5):
        await make_queue(name=f"q{number}").add_items([Item(b"x") for _ in range(10)])
    assert (await find_queues(redis_url)).complete
    assert not (await find_queues(redis_url, max_keys=20)).complete
    names, complete = await find_queues(redis_url, max_queues=3)
    assert (len(names), complete) == (3, False)
    await redis.delete(*[f"q{number}:queue" for number in range(5)])


async def test_the_other_queues_are_counted_if_one_cannot_be(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x"))
    await redis.set("spoiled:dead", "a string")
    outcome = await leasequeue("ls", "spoiled", queue.name)
    assert outcome.code == 0
    assert outcome.error.startswith("spoiled: ")
    assert outcome.table == [TITLES, [queue.name, "1", "0", "0", "0"]]
