"""`leasequeue fsck`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue import Item
from tests.cli.program import usage_error
from tests.queue.asking import take

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue


async def test_a_right_queue_has_no_problem(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items([Item(b"x"), Item(b"y")])
    await take(queue, 30)
    outcome = await leasequeue("fsck", queue.name)
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


async def test_what_is_repaired_is_shown_for_each_queue(
    leasequeue: Leasequeue, make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    first, second = make_queue(name=f"{name}-1"), make_queue(name=f"{name}-2")
    await redis.set(f"{first.name}:item:a", "x")
    await second.add_item(Item(b"x", id="b"))
    await take(second, 30)
    await redis.delete(f"{second.name}:deadlines")
    outcome = await leasequeue("fsck", first.name, second.name, "--json")
    assert outcome.code == 1
    assert outcome.documents == [
        {
            "queue": first.name,
            "problem": "lost_item",
            "count": 1,
            "repaired": True,
            "found": "an item is in no list",
            "done": "requeued, to the end",
            "examples": ["a"],
        },
        {
            "queue": second.name,
            "problem": "lost_lease",
            "count": 1,
            "repaired": True,
            "found": "an item has the lease keys of a lease, and no entry in `P:deadlines`",
            "done": "the entry was written; the lease expires with the keys",
            "examples": ["b"],
        },
    ]
    assert (await leasequeue("fsck", first.name, second.name)).code == 0


async def test_what_is_left_to_the_user_has_its_own_exit_code(
    leasequeue: Leasequeue, queue: AsyncWorkQueue, redis: Redis
) -> None:
    await queue.add_item(Item(b"x", id="a"))
    await redis.set(f"{queue.name}:lease:a", "a client of another library")
    outcome = await leasequeue("fsck", queue.name)
    assert outcome.code == 3
    titles, row = outcome.table
    assert titles == ["queue", "problem", "count", "done", "examples"]
    assert row[:3] == [queue.name, "endless_foreign_lease", "1"]
    assert "not repaired: delete the key" in outcome.out


async def test_wrong_usage_is_refused(leasequeue: Leasequeue) -> None:
    assert "Missing argument 'QUEUE'" in usage_error(await leasequeue("fsck"))
