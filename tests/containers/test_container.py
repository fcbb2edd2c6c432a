"""A server in a container goes through what containers go through, and clients see what they should see.

Run by `make test-containers`; `tests/with-containers.sh` brings the engine and the image.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from testcontainers.core.container import DockerContainer

pytestmark = pytest.mark.containers


class Container(Protocol):
    """What is used of the engine's own handle; docker ships no types."""

    def pause(self) -> None: ...
    def unpause(self) -> None: ...
    def restart(self, *, timeout: int) -> None: ...
    def kill(self, signal: str) -> None: ...
    def wait(self) -> object: ...
    def start(self) -> None: ...


@pytest.fixture
def engine_container() -> Iterator[DockerContainer]:
    """Run a server that keeps its data in the container, each write at once."""
    container = servers.container().with_command("--appendonly yes --appendfsync always --dir /tmp")
    with container:
        yield container


@pytest.fixture
def container(engine_container: DockerContainer) -> Container:
    """Give the engine's own handle."""
    handle: Container = engine_container.get_wrapped_container()
    return handle


@pytest.fixture
async def client(engine_container: DockerContainer) -> AsyncIterator[Redis]:
    url = servers.container_url(engine_container)
    async with Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=0.5) as client:
        await client.set("key", "value")
        yield client


async def answer(client: Redis, within: float = 10.0) -> object:
    """Ask until somebody answers: a container that was started is not yet a server that listens."""
    async with asyncio.timeout(within):
        while True:
            try:
                return await client.get("key")
            except (RedisConnectionError, RedisTimeoutError):
                await asyncio.sleep(0.02)


async def test_paused_server_is_silent_and_comes_back(client: Redis, container: Container) -> None:
    container.pause()
    with pytest.raises(RedisTimeoutError):
        await client.ping()
    container.unpause()
    await answer(client)


async def test_restarted_server_keeps_url_and_data(client: Redis, container: Container) -> None:
    container.restart(timeout=5)
    assert await answer(client) == b"value"


async def test_killed_server_refuses_then_has_its_data(client: Redis, container: Container) -> None:
    container.kill("SIGKILL")
    container.wait()
    with pytest.raises((RedisConnectionError, RedisTimeoutError)):
        await client.ping()
    container.start()
    assert await answer(client) == b"value"
