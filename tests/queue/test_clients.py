"""Whatever client the user has: we take from it where the server is and how to log in, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from leasehold import AsyncWorkQueue, Item
from tests.queue.asking import blocked, command, take
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from tests.conftest import MakeServer
    from tests.queue.fixtures import MakeQueue

pytestmark = pytest.mark.core

SETTINGS: dict[str, dict[str, Any]] = {
    "that decodes": {"decode_responses": True, "encoding": "latin-1"},
    "of protocol 2": {"protocol": 2},
    "of protocol 3": {"protocol": 3},
    "that is impatient": {"socket_timeout": 0.05},
    "that resends": {"retry": Retry(NoBackoff(), 10), "retry_on_timeout": True, "retry_on_error": [OSError]},
    "that looks after its health": {"health_check_interval": 1},
    "of one connection": {"single_connection_client": True},
    "with a name": {"client_name": "me"},
}


@pytest.mark.parametrize("kind", SETTINGS)
async def test_a_client(redis_url: str, redis: Redis, name: str, kind: str) -> None:
    async with Redis.from_url(redis_url, **SETTINGS[kind]) as client:
        async with AsyncWorkQueue(name, client) as queue, AsyncWorkQueue(name, client) as other:
            waiting = asyncio.create_task(take(queue))
            await blocked(redis, 1)
            await asyncio.sleep(0.1)  # longer than an impatient client has patience
            assert await other.add_item(Item(b"\xff\x00", id="é"))
            lease = await waiting
            assert (lease.id, lease.data) == ("é", b"\xff\x00")
            assert [view.id for view in await queue.inspect("leased")] == ["é"]
            assert await queue.complete(lease)
        assert await client.ping(), "it stays the user's"
    assert not await left_over(redis, name)


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool])
async def test_a_pool_that_is_used_up(
    redis_url: str, redis: Redis, name: str, kind: type[ConnectionPool]
) -> None:
    """Our connections are our own: they are not taken from it."""
    pool = kind.from_url(redis_url, max_connections=1)
    async with Redis.from_pool(pool) as client:
        busy = asyncio.create_task(command(client, "BLPOP", f"{name}:nothing", 20))
        await blocked(redis, 1)
        async with AsyncWorkQueue(name, client) as queue:
            assert await queue.add_item(Item(b"x"))
            await take(queue)
        await command(redis, "RPUSH", f"{name}:nothing", "something")
        await busy


async def test_another_database(redis_url: str, redis: Redis, name: str) -> None:
    async with Redis.from_url(redis_url.replace("/0", "/5")) as client, AsyncWorkQueue(name, client) as queue:
        waiting = asyncio.create_task(take(queue))
        await blocked(redis, 1)
        assert await queue.add_item(Item(b"x", id="x"))
        await waiting
        assert (await audit(client, name)).leased == [b"x"]
        assert not await left_over(redis, name)
        assert queue.url is not None
        assert queue.url.endswith("/5")
        async with AsyncWorkQueue.from_url(queue.url, name) as same:
            assert await same.processing() == 1


async def test_a_unix_socket(make_server: MakeServer, make_queue: MakeQueue, name: str) -> None:
    server = await make_server()
    async with Redis(unix_socket_path=server.socket_path) as client, AsyncWorkQueue(name, client) as queue:
        waiting = asyncio.create_task(take(queue))
        await blocked(client, 1)
        assert await make_queue(url=server.url).add_item(Item(b"x"))
        await waiting
        assert queue.url is not None
        assert await make_queue(url=queue.url).processing() == 1


async def test_a_login_stays_out_of_the_url(make_server: MakeServer, name: str) -> None:
    server = await make_server()
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("requirepass", "secret")
    login = server.url.replace("redis://", "redis://:secret@")
    async with Redis.from_url(login) as client, AsyncWorkQueue(name, client) as queue:
        assert await queue.add_item(Item(b"x"))
        assert queue.url == server.url
