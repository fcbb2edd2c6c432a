"""Clients of redis-py: a queue uses only their address and login."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from leasequeue import AsyncWorkQueue, Item
from leasequeue.embedded.guardian import private_folder
from leasequeue.errors import ConnectionLost, LoginRefused, ServerRefused
from leasequeue.queue.queue import engines_of
from tests.ports import free_port
from tests.processes import answering
from tests.queue.asking import blocked, command, renew_elsewhere, take, until
from tests.queue.keyspace import audit, left_over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.embedded import EmbeddedServer
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
@pytest.mark.seed("WRQ-O24")
async def test_every_kind_of_client_can_be_used(redis_url: str, redis: Redis, name: str, kind: str) -> None:
    async with Redis.from_url(redis_url, **SETTINGS[kind]) as client:
        async with AsyncWorkQueue(name, client) as queue, AsyncWorkQueue(name, client) as other:
            waiting = asyncio.create_task(take(queue))
            await blocked(redis, 1)
            await asyncio.sleep(0.1)  # longer than an impatient client has reply_timeout
            assert await other.add_item(Item(b"\xff\x00", id="é"))
            lease = await waiting
            assert (lease.id, lease.data) == ("é", b"\xff\x00")
            assert [view.id for view in await queue.inspect("leased")] == ["é"]
            assert await queue.complete(lease)

        async def answers() -> bool:
            with contextlib.suppress(RedisTimeoutError):  # of the impatient one
                return bool(await client.ping())
            return False

        await until("it stays the user's", answers)
    assert not await left_over(redis, name)


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool])
async def test_an_exhausted_pool_of_the_user_does_not_matter(
    redis_url: str, redis: Redis, name: str, kind: type[ConnectionPool]
) -> None:
    """The queue takes no connections from it."""
    pool = kind.from_url(redis_url, max_connections=1)
    async with Redis.from_pool(pool) as client:
        busy = asyncio.create_task(command(client, "BLPOP", f"{name}:nothing", 20))
        await blocked(redis, 1)
        async with AsyncWorkQueue(name, client) as queue:
            assert await queue.add_item(Item(b"x"))
            await take(queue)
        await command(redis, "RPUSH", f"{name}:nothing", "something")
        await busy


async def test_a_queue_uses_the_database_of_its_client(redis_url: str, redis: Redis, name: str) -> None:
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


async def test_a_queue_on_a_unix_socket(make_server: MakeServer, make_queue: MakeQueue, name: str) -> None:
    server = await make_server()
    async with Redis(unix_socket_path=server.socket_path) as client, AsyncWorkQueue(name, client) as queue:
        waiting = asyncio.create_task(take(queue))
        await blocked(client, 1)
        assert await make_queue(url=server.url).add_item(Item(b"x"))
        await waiting
        assert queue.url is not None
        assert await make_queue(url=queue.url).processing() == 1


async def test_the_url_of_a_queue_contains_no_login(make_server: MakeServer, name: str) -> None:
    server = await make_server()
    async with Redis.from_url(server.url) as admin:
        await admin.config_set("requirepass", "secret")
    login = server.url.replace("redis://", "redis://:secret@")
    async with Redis.from_url(login) as client, AsyncWorkQueue(name, client) as queue:
        assert await queue.add_item(Item(b"x"))
        assert queue.url == server.url


@contextlib.asynccontextmanager
async def client_by(*ports: int, **login: str) -> AsyncIterator[Redis]:
    """Give a client of the server that the Sentinels at some ports call `main`."""
    sentinels = [("127.0.0.1", port) for port in ports]
    sentinel = Sentinel(sentinels, sentinel_kwargs=login)  # type: ignore[no-untyped-call]  # theirs has no types
    client: Redis = sentinel.master_for("main", client_name="me")
    try:
        yield client
    finally:
        await client.aclose()
        for one in sentinel.sentinels:  # the oldest redis-py cannot close all at once
            await one.aclose()


@contextlib.asynccontextmanager
async def running_sentinel(watches: EmbeddedServer | None) -> AsyncIterator[int]:
    """Run a Sentinel inside the block, and give its port when it names the server that it watches."""
    folder, port = private_folder(), free_port()
    lines = [f"port {port}", "bind 127.0.0.1", f"dir {folder}"]
    if watches is not None:
        lines.append(f"sentinel monitor main 127.0.0.1 {urlsplit(watches.url).port} 1")
    (folder / "sentinel.conf").write_text("\n".join([*lines, ""]))
    words = (folder / "sentinel.conf", "--sentinel")
    async with answering("embedded", port, *words, folder=folder), client_by(port) as client:

        async def is_found() -> bool:
            with contextlib.suppress(OSError, RedisError):
                return bool(await client.ping())
            return False

        if watches is not None:
            await until("the Sentinel names the server", is_found)
        yield port


async def test_under_sentinel_each_event_loop_has_connections_to_the_sentinels(
    make_server: MakeServer, name: str
) -> None:
    server = await make_server()
    async with (
        running_sentinel(server) as watching,
        client_by(watching) as client,
        AsyncWorkQueue(name, client) as queue,
    ):
        await queue.add_item(Item(b"x"))
        lease = await take(queue)
        assert await renew_elsewhere(queue, lease)
        assert await queue.complete(lease)


async def test_sentinels_that_refuse_or_are_silent_delay_no_connection(
    make_server: MakeServer, name: str
) -> None:
    """They come first in the client's list. One after the other, each would be tried again and again."""
    server = await make_server()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with (
            running_sentinel(server) as watching,
            client_by(free_port(), silent.getsockname()[1], watching) as client,
            AsyncWorkQueue(name, client, reply_timeout=20) as queue,
        ):
            assert await queue.add_item(Item(b"x"))


async def test_connections_that_are_opened_together_leave_a_session_all_its_sentinels(
    make_server: MakeServer, name: str
) -> None:
    server = await make_server()
    async with (
        running_sentinel(None) as unknowing,
        running_sentinel(server) as watching,
        client_by(unknowing, watching, free_port()) as client,
        AsyncWorkQueue(name, client) as queue,
    ):
        route = engines_of(queue).here().route
        own: Any = route.servers.own_client
        kept = own.connection_pool.sentinel_manager.sentinels
        before = [*kept]
        opened = await asyncio.gather(*(route.open("waits", reply_timeout=20) for _ in range(4)))
        for connection in opened:
            await connection.close()
        assert len({*kept}) == len(before) == 3


async def test_sentinels_that_refuse_the_login_are_an_outage_only_if_others_are_away(name: str) -> None:
    login = {"username": "nobody", "password": "x"}
    async with running_sentinel(None) as port:
        async with client_by(port, **login) as client, AsyncWorkQueue(name, client) as queue:
            with pytest.raises(LoginRefused, match="sentinel_kwargs"):
                await queue.counts()
        async with client_by(port, free_port(), **login) as client, AsyncWorkQueue(name, client) as queue:
            with pytest.raises(ConnectionLost):
                await queue.counts()


async def test_a_client_for_a_cluster_is_refused_by_a_single_server(redis_url: str) -> None:
    async with AsyncWorkQueue.from_url(redis_url, "{emails}", cluster=True) as queue:
        with pytest.raises(ServerRefused, match="not part of a cluster"):
            await queue.counts()
