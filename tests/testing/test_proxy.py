"""The proxy forwards commands, and injects the faults that the fault tests rely on."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from leasequeue import InvalidArgument
from leasequeue.embedded import EmbeddedServer
from leasequeue.testing import Proxy
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Redis]:
    async with Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=20) as client:
        yield client


async def test_forwards_and_records_commands(client: Redis, proxy: Proxy) -> None:
    await client.set("key", bytes(range(256)) * 1000)
    assert await client.get("key") == bytes(range(256)) * 1000
    assert proxy.commands[-2:] == [b"SET", b"GET"]


async def test_records_each_command_of_a_pipeline(client: Redis, proxy: Proxy) -> None:
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.rpush("list", number)
        await pipeline.execute()
    assert proxy.commands.count(b"RPUSH") == 100


async def test_forwards_what_is_no_array_of_strings(client: Redis, proxy: Proxy) -> None:
    await client.ping()
    address = urlsplit(proxy.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"PING\r\nPING\r\n")
    assert await reader.readexactly(14) == b"+PONG\r\n+PONG\r\n"
    writer.close()
    assert proxy.commands[-1] == b"PING"


async def test_delays_both_directions(client: Redis, proxy: Proxy) -> None:
    await client.ping()
    proxy.delay = 0.05
    begin = time.monotonic()
    await client.ping()
    assert time.monotonic() - begin >= 0.1


async def test_drops_replies_of_commands_that_were_applied(client: Redis, proxy: Proxy, redis: Redis) -> None:
    await client.ping()
    proxy.drop_replies = True
    pushing = asyncio.ensure_future(client.rpush("list", "once"))
    while not await redis.exists("list"):  # noqa: ASYNC110 - the server sends no notification
        await asyncio.sleep(0.005)
    await assert_pending(pushing)
    await proxy.cut()
    with pytest.raises(RedisConnectionError):
        await pushing
    assert await redis.lrange("list", 0, -1) == [b"once"]


async def test_cuts_connections_during_a_call(client: Redis, proxy: Proxy) -> None:
    waiting = asyncio.ensure_future(client.blpop(["nothing"], timeout=5))
    await eventually("the command is forwarded", lambda: b"BLPOP" in proxy.commands)
    await proxy.cut()
    with pytest.raises(RedisConnectionError):
        await waiting
    assert await client.ping()


async def test_cuts_in_the_middle_of_a_reply(client: Redis, proxy: Proxy) -> None:
    await client.set("key", "x" * 100)
    proxy.cut_after_bytes(50)
    with pytest.raises(RedisConnectionError):
        await client.get("key")
    assert await client.get("key") == b"x" * 100


async def test_refuses_and_accepts_again_on_the_same_port(client: Redis, proxy: Proxy) -> None:
    await client.ping()
    proxy.refuse()
    assert await client.ping()
    await proxy.cut()
    with pytest.raises(RedisConnectionError):
        await client.ping()
    await proxy.accept()
    assert await client.ping()


@pytest.mark.parametrize("turns", range(8))
async def test_closes_connections_that_are_just_being_accepted(redis_url: str, turns: int) -> None:
    """So many turns of the event loop after the connection was made."""
    async with Proxy(redis_url) as proxy:
        address = urlsplit(proxy.url)
        with socket.create_connection((address.hostname, address.port)) as client:
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
            await proxy.fail()
            async with asyncio.timeout(120):
                with suppress(ConnectionResetError):
                    assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_stalls_without_closing(client: Redis, proxy: Proxy, redis: Redis) -> None:
    await client.ping()
    proxy.stall()
    pushing = asyncio.ensure_future(client.rpush("list", "late"))
    await assert_pending(pushing)
    assert await redis.exists("list") == 0
    proxy.resume()
    assert await pushing == 1


async def test_stalls_existing_connections_until_it_is_healed(
    client: Redis, proxy: Proxy, redis: Redis
) -> None:
    await client.ping()
    proxy.stall_connections()
    pushing = asyncio.ensure_future(client.rpush("list", "late"))
    await assert_pending(pushing)
    async with Redis.from_url(proxy.url) as other:
        assert await other.ping(), "a new connection works"
    assert await redis.exists("list") == 0
    await proxy.heal()
    assert await pushing == 1


async def test_healing_removes_all_faults(client: Redis, proxy: Proxy) -> None:
    await client.ping()
    proxy.stall()
    proxy.stall_connections()
    proxy.delay = 30
    proxy.drop_replies = True
    proxy.cut_after_bytes(0)
    proxy.refuse()
    await proxy.heal()
    await proxy.heal()
    await client.connection_pool.disconnect()
    assert await client.ping()


async def test_connects_to_a_unix_socket() -> None:
    async with (
        await EmbeddedServer.start() as server,
        Proxy(f"unix://{server.socket_path}") as proxy,
        Redis.from_url(proxy.url) as client,
    ):
        assert proxy.url.startswith("redis://127.0.0.1:")
        await client.set("key", "value")
        async with Redis.from_url(server.url) as direct:
            assert await direct.get("key") == b"value"


async def test_keeps_login_and_database() -> None:
    async with Proxy("redis://user:secret@example.org:7000/3?protocol=3") as proxy:
        port = proxy.url.rpartition(":")[2].partition("/")[0]
        assert proxy.url == f"redis://user:secret@127.0.0.1:{port}/3?protocol=3"


@pytest.mark.parametrize("target", ["rediss://localhost", "localhost:6379", ""])
def test_refuses_other_targets(target: str) -> None:
    with pytest.raises(InvalidArgument, match="target"):
        Proxy(target)


async def assert_pending(call: asyncio.Future[int]) -> None:
    """Assert that a call gets no reply for a while."""
    done, _ = await asyncio.wait([call], timeout=0.1)
    assert not done
