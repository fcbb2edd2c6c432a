"""The proxy does what the fault tests rely on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasehold.testing import Proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[Redis]:
    async with Redis.from_url(proxy.url, retry=Retry(NoBackoff(), 0), socket_timeout=0.5) as client:
        yield client


async def test_forwards_and_notes_the_commands(client: Redis, proxy: Proxy) -> None:
    await client.set("key", bytes(range(256)) * 1000)
    assert await client.get("key") == bytes(range(256)) * 1000
    assert proxy.requests[-2:] == [b"SET", b"GET"]


async def test_notes_each_command_of_a_pipeline(client: Redis, proxy: Proxy) -> None:
    async with client.pipeline(transaction=False) as pipeline:
        for number in range(100):
            pipeline.rpush("list", number)
        await pipeline.execute()
    assert proxy.requests.count(b"RPUSH") == 100


async def test_delays_both_ways(client: Redis, proxy: Proxy) -> None:
    await client.ping()
    proxy.delay = 0.05
    begin = time.monotonic()
    await client.ping()
    assert time.monotonic() - begin >= 0.1


async def test_swallows_replies_of_commands_that_were_applied(
    client: Redis, proxy: Proxy, redis: Redis
) -> None:
    await client.ping()
    proxy.swallow_replies = True
    with pytest.raises(RedisTimeoutError):
        await client.rpush("list", "once")
    assert await redis.lrange("list", 0, -1) == [b"once"]


async def test_cuts_connections_in_mid_call(client: Redis, proxy: Proxy) -> None:
    waiting = asyncio.ensure_future(client.blpop(["nothing"], timeout=5))
    await eventually("the command is under way", lambda: b"BLPOP" in proxy.requests)
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


async def test_stalls_without_closing(client: Redis, proxy: Proxy, redis: Redis) -> None:
    await client.ping()
    proxy.stall()
    with pytest.raises(RedisTimeoutError):
        await client.rpush("list", "late")
    assert await redis.exists("list") == 0
    proxy.resume()
    assert await client.ping()
