"""`leasequeue workers`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from leasequeue import Item
from leasequeue.queue.queue import engine_of
from tests.queue.asking import take

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue
    from tests.cli.program import Leasequeue

ABOUT = {
    "name": "mailer",
    "host": "web-1",
    "pid": 7,
    "started": 1_700_000_000_000,
    "concurrency": 5,
    "runs": 1200,
    "failures": 3,
    "running": [["m1", "send", 1_700_000_000_500]],
}


async def register(queue: AsyncWorkQueue, *, alive_ms: int = 600_000, **about: object) -> str:
    """Register the session of the test as a worker."""
    assert (await engine_of(queue).registry.beat({**ABOUT, **about}, alive_ms=alive_ms, first=True)).accepted
    return queue.session


async def test_ls_lists_the_workers(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    outcome = await leasequeue("workers", "ls", queue.name)
    assert (outcome.code, outcome.out, outcome.error) == (0, "", "no worker is registered")
    session = await register(queue)
    outcome = await leasequeue("workers", "ls", queue.name, queue.name)
    assert outcome.table[0] == ["worker", "state", "queues", "running", "runs", "failures", "since"]
    assert outcome.table[1][:6] == ["mailer", "working", queue.name, "1", "1,200", "3"]
    (document,) = (await leasequeue("workers", "ls", queue.name, "--json")).documents
    assert (document["name"], document["host"], document["pid"]) == ("mailer", "web-1", 7)
    assert (document["state"], document["sessions"]) == ("working", {queue.name: session})
    (run,) = document["running"]
    assert (run["id"], run["handler"]) == ("m1", "send")


async def test_ls_says_who_is_quiet_stopping_or_dead(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await register(queue, quiet=True)
    assert (await leasequeue("workers", "ls", queue.name)).table[1][1] == "quiet"
    assert (await leasequeue("workers", "stop", queue.name, "mailer")).code == 0
    assert (await leasequeue("workers", "ls", queue.name)).table[1][1] == "stopping"
    assert (await leasequeue("workers", "ls", queue.name, "--dead")).error == "no dead worker"
    await register(queue, alive_ms=-1)
    assert (await leasequeue("workers", "ls", queue.name, "--dead")).table[1][1] == "dead"


async def test_fail_returns_the_items_of_a_worker(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await queue.add_items(Item(b"x", id=one) for one in "ab")
    lease = await take(queue)
    session = await register(queue)
    outcome = await leasequeue("workers", "fail", queue.name, session, "--json")
    assert json.loads(outcome.out) == {"queue": queue.name, "worker": session, "returned": 1}
    assert [view.id for view in await queue.inspect()] == ["a", "b"]
    assert not await queue.complete(lease)
    outcome = await leasequeue("workers", "fail", queue.name, "mailer")
    assert outcome.code == 1
    assert outcome.error.startswith(
        f"no worker 'mailer' is registered on {queue.name!r}: `leasequeue workers ls"
    )


async def test_a_worker_is_told_what_to_do(leasequeue: Leasequeue, queue: AsyncWorkQueue) -> None:
    await register(queue)
    for what in ("quiet", "resume"):
        outcome = await leasequeue("workers", what, queue.name, "mailer", "--json")
        assert json.loads(outcome.out) == {"queue": queue.name, "worker": "mailer", "ordered": what}
        (one,) = await engine_of(queue).registry.workers()
        assert one.order == what
        assert (await leasequeue("workers", what, queue.name, "another")).code == 1
