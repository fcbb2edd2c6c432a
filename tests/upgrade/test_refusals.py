"""What an older version does when the format is raised under it: each face refuses, and says why."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.cli import upgrade as command
from leasequeue.errors import FormatTooNew
from leasequeue.fastapi import lifespan, router
from leasequeue.queue import formats
from tests.cli.test_command_line import CALLS
from tests.dashboard.boards import client_of, open_board
from tests.queue.asking import until
from tests.worker.working import new_worker, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.cli.program import Leasequeue
    from tests.queue.fixtures import MakeQueue

SAID = f"has format 2, set by leasequeue 0.2.0. This is leasequeue {version('leasequeue')}, which knows"


async def raise_format(redis: Redis, *queues: AsyncWorkQueue) -> None:
    """Do what a version 0.2.0 does."""
    for queue in queues:
        await redis.set(f"{queue.name}:format", "2 2 0.2.0")
        await redis.set(f"{queue.name}:too_new_for:1", "2 0.2.0")


async def test_a_worker_waits_until_the_format_is_lowered(queue: AsyncWorkQueue, redis: Redis) -> None:
    worker, runs = Worker(), asyncio.Queue[bytes]()

    @worker.handler(queue)
    async def run(data: bytes) -> None:
        await runs.put(data)

    working = asyncio.create_task(worker.run())
    await queue.add_item(Item(b"before"))
    assert await runs.get() == b"before"
    await redis.set(f"{queue.name}:too_new_for:1", "2 0.2.0")
    await redis.lpush(f"{queue.name}:queue", "wakes")  # by a client of another library
    await until("it says why it does not work", lambda: _says_so(worker))
    await redis.delete(f"{queue.name}:too_new_for:1")
    await queue.add_item(Item(b"after"))
    assert await runs.get() == b"after"
    worker.stop()
    await working


async def _says_so(worker: Worker) -> bool:
    return any(SAID in reason for reason in worker.health().reasons)


async def test_a_worker_that_starts_ends_before_it_takes_any_item(
    make_queue: MakeQueue, redis: Redis, name: str
) -> None:
    queue, other = make_queue(), make_queue(name=f"{name}-other")
    await other.add_item(Item(b"x"))
    await raise_format(redis, queue)
    worker = Worker()

    async def run(_: bytes) -> None:
        worker.stop()

    for one in (other, queue):
        worker.handler(one)(run)
    with pytest.raises(FormatTooNew, match=SAID):
        await worker.run()
    assert len(await redis.keys(f"{queue.name}:*")) == 2, "it has not registered"
    assert await redis.exists(f"{other.name}:workers", f"{other.name}:deadlines") == 0


async def test_a_producer_is_refused_whenever_it_has_opened(queue: AsyncWorkQueue, redis: Redis) -> None:
    assert await queue.add_item(Item(b"x", id="before"))
    await raise_format(redis, queue)
    before = {*await redis.keys(f"{queue.name}:*")}
    async with AsyncWorkQueue.from_url(str(queue.url), queue.name) as opened_later:
        for one in (queue, opened_later):
            with pytest.raises(FormatTooNew, match=SAID):
                await one.add_item(Item(b"x", id="late"))
    assert {*await redis.keys(f"{queue.name}:*")} == before


#: The commands that change something of their queue, and need no worker and no run; and some that read it.
REFUSED = {
    *("add", "add --file", "clean", "cancel", "promote", "priority", "pause", "resume", "fsck", "upgrade"),
    *("purge", "rm", "recover", "clear-leases", "dead requeue", "dead drop"),
    *("schedule add", "schedule run", "schedule rm", "flow cancel", "ls", "stats", "dead ls", "show"),
}


@pytest.mark.parametrize("call", sorted(REFUSED))
async def test_a_command_is_refused(
    queue: AsyncWorkQueue, redis: Redis, leasequeue: Leasequeue, call: str
) -> None:
    await queue.add_item(Item(b"x", id="x"))
    await raise_format(redis, queue)
    before = {*await redis.keys(f"{queue.name}*")}
    words = [queue.name if word == "emails" else word for word in CALLS[call]]
    outcome = await leasequeue(*words, stdin=b"x\n")
    assert (outcome.code, outcome.out, SAID in outcome.err) == (5, "", True)
    assert {*await redis.keys(f"{queue.name}*")} == before


async def test_commands_for_all_queues_name_the_one_that_is_too_new(
    make_queue: MakeQueue, redis: Redis, leasequeue: Leasequeue, name: str
) -> None:
    queue, other = make_queue(), make_queue(name=f"{name}-other")
    for one in (queue, other):
        await one.add_item(Item(b"x"))
    async with idle_worker(queue, redis) as worker:
        await raise_format(redis, queue)
        for words in (("ls",), ("stats",)):
            outcome = await leasequeue(*words)
            assert (outcome.code, f"{queue.name}: the queue {queue.name!r} {SAID}" in outcome.err) == (
                0,
                True,
            )
            assert other.name in [line[0] for line in outcome.table]
        listed = await leasequeue("workers", "ls", queue.name)
        assert (listed.code, worker.name in listed.out) == (0, True), "it shows who is to be replaced"
        moved = await leasequeue("mv", queue.name, other.name)
        assert (moved.code, moved.out) == (5, "")
        await redis.delete(f"{queue.name}:format", f"{queue.name}:too_new_for:1")


async def is_there(redis: Redis, key: str) -> bool:
    return bool(await redis.exists(key))


@asynccontextmanager
async def idle_worker(queue: AsyncWorkQueue, redis: Redis) -> AsyncIterator[Worker]:
    """Run a worker that is registered."""
    worker = new_worker(clean_every=None)
    worker.handler(queue)(_ignore)
    async with working(worker):
        await until("it is registered", lambda: is_there(redis, f"{queue.name}:workers"))
        yield worker


async def _ignore(_: bytes) -> None:
    pass


async def test_several_queues_are_raised_together_or_none_is(
    make_queue: MakeQueue,
    redis: Redis,
    leasequeue: Leasequeue,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = make_queue(), make_queue(name=f"{name}-second")
    for one in (first, second):
        await one.add_item(Item(b"x"))
    for module in (command, formats):
        monkeypatch.setattr(module, "FORMAT", 2)
    monkeypatch.setattr(formats, "FLOOR", 2)
    async with idle_worker(second, redis) as worker:
        held = await leasequeue("upgrade", first.name, second.name)
        assert (held.code, [*held.table]) == (1, [[f"{one.name}:", "format", "1"] for one in (first, second)])
        assert held.error.startswith(f"{second.name}: these workers do not know format 2: {worker.name}")
        assert await redis.exists(f"{first.name}:format") == 0
    assert (await leasequeue("upgrade", first.name, second.name)).code == 0
    for one in (first, second):
        assert await redis.get(f"{one.name}:format") == f"2 2 {version('leasequeue')}".encode()


async def test_the_dashboard_and_the_routes_of_fastapi_say_so(
    queue: AsyncWorkQueue, redis: Redis, redis_url: str
) -> None:
    await queue.add_item(Item(b"x", id="one"))
    app = FastAPI(lifespan=lifespan(queue))
    app.include_router(router(queue))
    async with app.router.lifespan_context(app), client_of(app) as client:
        assert (await client.get("/ready")).status_code == 200
        await redis.set(f"{queue.name}:too_new_for:1", "2 0.2.0")
        ready = await client.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["the server refuses: FormatTooNew, see the log"]
    async with open_board(redis_url) as (_, client):
        page = await client.get(f"/queues/{queue.name}/jobs/one")
        assert (page.status_code, SAID in page.text, "The server refuses" in page.text) == (503, True, True)


async def test_a_queue_with_shards_is_refused_when_only_its_first_one_is_raised(
    redis: Redis, redis_url: str, name: str
) -> None:
    async with AsyncWorkQueue.from_url(redis_url, name, shards=4) as queue:
        await queue.add_item(Item(b"x"))
        first = queue.shards[0].name
    await redis.set(f"{first}:too_new_for:1", "2 0.2.0")
    async with AsyncWorkQueue.from_url(redis_url, name, shards=4) as again:
        with pytest.raises(FormatTooNew, match=SAID):
            await again.add_items([Item(b"x") for _ in range(20)])
    await redis.delete(f"{first}:too_new_for:1")
    async with AsyncWorkQueue.from_url(redis_url, name, shards=4) as again:
        assert await again.queue_len() == 1
        await again.admin.delete()


async def test_a_deleted_queue_has_no_format(queue: AsyncWorkQueue, redis: Redis) -> None:
    await queue.add_item(Item(b"x"))
    await redis.set(f"{queue.name}:format", "2 1 0.2.0")  # which this version reads right
    assert await queue.admin.purge() == 1
    assert await redis.get(f"{queue.name}:format") == b"2 1 0.2.0"
    await queue.admin.delete()
    assert await redis.keys(f"{queue.name}:format") == []
