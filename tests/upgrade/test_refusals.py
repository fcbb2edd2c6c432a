"""What an older version does when the format is raised under it: each face refuses, and says why."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from fastapi import FastAPI

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.errors import FormatTooNew
from leasequeue.fastapi import lifespan, router
from tests.dashboard.boards import client_of, open_board
from tests.queue.asking import until

if TYPE_CHECKING:
    from redis.asyncio import Redis

SAID = "has format 2, set by leasequeue 0.2.0. This is leasequeue"


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


async def test_a_worker_that_starts_ends(queue: AsyncWorkQueue, redis: Redis) -> None:
    await redis.set(f"{queue.name}:too_new_for:1", "2 0.2.0")
    await redis.set(f"{queue.name}:format", "2 2 0.2.0")
    worker = Worker()
    worker.handler(queue)(_never)
    with pytest.raises(FormatTooNew, match=SAID):
        await worker.run()
    assert {*await redis.keys(f"{queue.name}:*")} == {
        f"{queue.name}:{one}".encode() for one in ("format", "too_new_for:1")
    }


async def _never(data: bytes) -> None:
    raise AssertionError(data)


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
