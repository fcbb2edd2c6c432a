"""Workers of a program on queues of a test: nothing else is used, the lifespan included."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING

import pytest

from leasequeue import (
    AsyncWorkQueue,
    Fleet,
    InvalidArgument,
    Item,
    Provided,
    RetryPolicy,
    ServerError,
    TaskQueue,
    Worker,
    lease_from,
)
from leasequeue.testing import assert_completed, assert_dead
from leasequeue.views import Counts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.testing.plugin import Queues, Workers

#: Nothing listens there.
ELSEWHERE = "redis://localhost:1"


@asynccontextmanager
async def real() -> AsyncIterator[dict[str, str]]:
    """Fail, as the lifespan of a program would that connects to something."""
    assert not os.getpid(), "the lifespan was run"
    yield {}


async def test_a_worker_runs_on_queues_of_the_test(
    leasequeue_queues: Queues, leasequeue_worker: Workers
) -> None:
    unreachable = AsyncWorkQueue.from_url(ELSEWHERE, "emails")
    ran: list[tuple[str, str]] = []
    app = Worker(lifespan=real, concurrency=2)

    @app.handler(unreachable, keep_result=60)
    async def greet(name: str, greeting: str) -> str:
        ran.append((greeting, name))
        if name == "ada":
            await unreachable.add_item(Item("bob", id="two"))
        return f"{greeting} {name}"

    worker = leasequeue_worker.like(app, provide={"greeting": "hello"})
    emails = leasequeue_queues("emails")
    await emails.add_item(Item("ada", id="one"))
    await worker.drain()
    assert ran == [("hello", "ada"), ("hello", "bob")]
    await assert_completed(emails, "one", result="hello ada")
    await assert_completed(emails, "two", result="hello bob")
    assert unreachable.name == emails.name
    assert worker.concurrency == 2
    again = leasequeue_worker.like(app, provide={"greeting": "hi"})
    await unreachable.add_item(Item("cem", id="three"))
    await again.drain()
    assert ran[-1] == ("hi", "cem")
    await leasequeue_worker.close()
    assert (unreachable.name, unreachable.url) == ("emails", f"{ELSEWHERE}/0")
    assert [handler.queue for handler in app.handlers] == [unreachable]
    await unreachable.close()


def queues_in(queue: AsyncWorkQueue) -> set[AsyncWorkQueue]:
    """Return the queue objects that are reached through the attributes of one."""
    found, seen, left = set[AsyncWorkQueue](), set[int](), list[object]([queue])
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, AsyncWorkQueue):
            found.add(one)
        if isinstance(one, (list, tuple, dict)):
            left += one.values() if isinstance(one, dict) else one
        elif isinstance(one, partial):
            left += [one.func, *one.args]
        elif isinstance(one, MethodType):
            left.append(one.__self__)
        elif type(one).__module__.startswith("leasequeue."):
            left += vars(one).values() if hasattr(one, "__dict__") else ()
    return found


async def test_all_parts_of_a_queue_lead_to_the_test(
    leasequeue_queues: Queues, leasequeue_worker: Workers
) -> None:
    emails, texts = (AsyncWorkQueue.from_url(ELSEWHERE, name) for name in ("{a}emails", "{a}texts"))
    app = Worker()

    async def send(data: str) -> None:
        raise AssertionError(data)

    for queue in (emails, texts):
        app.handler(queue)(send)
    leasequeue_worker.like(app)
    there, other = map(leasequeue_queues, ("{a}emails", "{a}texts"))
    await there.add_items([Item("ada", id="one"), Item("bob", id="two")], group="tenant")
    await there.add_item(Item("cem", id="three"))
    assert len(await lease_from([emails], 1, 30, block=False)) == 1
    assert await Fleet(emails).workers() == []
    assert await emails.admin.clear_leases() != []
    assert await emails.groups.move("tenant", texts.name) == ["one", "two"]
    assert await emails.admin.purge() == 1
    assert (await there.counts(), (await other.counts()).waiting) == (Counts(0, 0, 0, 0), 2)
    assert [queues_in(queue) for queue in (emails, texts)] == [{emails}, {texts}]
    await leasequeue_worker.close()
    assert [queues_in(queue) for queue in (emails, texts)] == [{emails}, {texts}]
    with pytest.raises(ServerError):
        await emails.admin.purge()
    await asyncio.gather(emails.close(), texts.close())


async def test_the_shards_of_a_queue_lead_to_the_test_and_stay_its_shards(leasequeue_worker: Workers) -> None:
    emails = AsyncWorkQueue.from_url(ELSEWHERE, "emails", shards=2)
    app = Worker()

    @app.handler(emails)
    async def send(data: str) -> None:
        raise AssertionError(data)

    leasequeue_worker.like(app)
    await emails.add_items([Item("ada"), Item("bob"), Item("cem")])
    assert [shard.whole for shard in emails.shards] == [emails, emails]
    assert all(queues_in(shard) == {emails, *emails.shards} for shard in emails.shards)
    assert await emails.admin.purge() == 3
    await emails.close()


async def test_tasks_run_on_queues_of_the_test_and_add_each_other(
    leasequeue_queues: Queues, leasequeue_worker: Workers
) -> None:
    tasks = TaskQueue.from_url(ELSEWHERE, "default")
    ran: list[str] = []

    @tasks.task
    async def greet(name: str, *, greeting: str = Provided()) -> None:
        ran.append(f"{greeting} {name}")
        await shout.add(name)

    @tasks.task(queue="own")
    def shout(name: str) -> None:
        ran.append(name.upper())

    worker = leasequeue_worker.like(Worker(tasks, lifespan=real), provide={"greeting": "hello"})
    await greet.add("ada")
    await leasequeue_queues("own").add_item(shout.call("bob").item())
    await leasequeue_queues("default").add_item(Item('{"task":"unknown","args":{}}', id="unknown"))
    await worker.drain()
    assert sorted(ran) == ["ADA", "BOB", "hello ada"]
    assert (await leasequeue_queues("default").counts()).scheduled == 1
    await leasequeue_worker.close()
    assert [handler.queue for handler in Worker(tasks).handlers] == [greet.queue, shout.queue]
    assert greet.queue.url == f"{ELSEWHERE}/0"
    await tasks.close()


async def test_a_run_that_uses_a_queue_of_another_server_fails(
    leasequeue_queues: Queues, leasequeue_worker: Workers
) -> None:
    emails, other = (AsyncWorkQueue.from_url(ELSEWHERE, name) for name in ("emails", "audit"))
    app = Worker(retry=RetryPolicy(attempts=1))

    @app.handler(emails)
    async def note(name: str) -> None:
        await other.add_item(Item(name))

    worker = leasequeue_worker.like(app)
    await leasequeue_queues("emails").add_item(Item("ada", id="one"))
    await worker.drain()
    await assert_dead(leasequeue_queues("emails"), "one", error="uses the queue 'audit' of another server")
    await leasequeue_worker.close()
    with pytest.raises(Exception, match="repeat when the server is back"):
        await other.add_item(Item("outside of a run"))
    await asyncio.gather(emails.close(), other.close())


def in_this_process(_: str) -> int:
    """Return the number of the process."""
    return os.getpid()


async def test_functions_for_processes_run_in_threads(
    leasequeue_queues: Queues, leasequeue_worker: Workers
) -> None:
    emails = AsyncWorkQueue.from_url(ELSEWHERE, "emails")
    app = Worker()
    app.handler(emails, run_in="process", keep_result=60)(in_this_process)
    worker = leasequeue_worker.like(app)
    await leasequeue_queues("emails").add_item(Item("ada", id="one"))
    await worker.drain()
    await assert_completed(leasequeue_queues("emails"), "one", result=os.getpid())
    assert [handler.run_in for handler in app.handlers] == ["process"]


async def test_a_lifespan_can_be_given_instead(leasequeue_queues: Queues, leasequeue_worker: Workers) -> None:
    emails = AsyncWorkQueue.from_url(ELSEWHERE, "emails")
    app, ran = Worker(lifespan=real), list[str]()

    @app.handler(emails)
    async def greet(name: str, greeting: str) -> None:
        ran.append(f"{greeting} {name}")

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "hello"}
        ran.append("ended")

    worker = leasequeue_worker.like(app, lifespan=lifespan)
    await leasequeue_queues("emails").add_item(Item("ada"))
    await worker.drain()
    assert ran == ["hello ada", "ended"]
    with pytest.raises(InvalidArgument, match="either"):
        leasequeue_worker.like(app, lifespan=lifespan, provide={"greeting": "hello"})
