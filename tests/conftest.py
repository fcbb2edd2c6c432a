"""What every test can ask for: a server, a client, a name, and servers of its own."""

from __future__ import annotations

import itertools
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

import pytest
import redis as redis_py
from hypothesis import settings
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from xdist.scheduler import LoadScopeScheduling

from leasehold.embedded import EmbeddedServer
from leasehold.testing import Proxy
from tests import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from xdist.remote import Producer

# How long an example takes says nothing: the machine may be busy with something else.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

_names = itertools.count(1)


class MakeServer(Protocol):
    """Start one more server, of the kind that the tests run on; it ends with the test at the latest."""

    async def __call__(
        self,
        *,
        dir: Path | None = None,  # noqa: A002 - as in EmbeddedServer.start
        port: int | None = None,
    ) -> EmbeddedServer: ...


class OneSession(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Gives each test to whoever is free, but all that share a session of Spark to one process.

    The groups of pytest-xdist 3.8 would do that, but pytest 9.2 does not see them.
    """

    def _split_scope(self, nodeid: str) -> str:
        alone = nodeid.startswith("tests/spark/programs/")
        shares = nodeid.startswith("tests/spark/") or "about_spark" in nodeid
        return "spark" if shares and not alone else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    """Give out the tests."""
    return OneSession(config, log)


@pytest.fixture(scope="session")
def server() -> Iterator[servers.Running]:
    """Run the server that the tests share; with pytest-xdist, one for each worker."""
    try:
        with servers.running(servers.wanted()) as running:
            yield running
    except servers.ServerMissing as missing:
        raise pytest.fail.Exception(str(missing), pytrace=False) from None


@pytest.fixture
def redis_url(server: servers.Running) -> str:
    """Give the url of the server, emptied if it is ours."""
    if server.ours:
        with redis_py.Redis.from_url(server.url) as client:
            client.flushall()
    return server.url


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """Give a plain client that sends nothing twice and decodes nothing."""
    async with Redis.from_url(redis_url, retry=Retry(NoBackoff(), 0)) as client:
        yield client


@pytest.fixture
def name() -> str:
    """Give a queue's name that no other test has, on any worker."""
    return f"{os.environ.get('PYTEST_XDIST_WORKER', 'test')}-{next(_names)}"


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    """Give a way to the server that can be delayed, cut and refused."""
    async with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def make_server() -> AsyncIterator[MakeServer]:
    """Give a function that starts servers, for tests that kill and restart them."""
    async with AsyncExitStack() as started:

        async def make(*, dir: Path | None = None, port: int | None = None) -> EmbeddedServer:  # noqa: A002 - as there
            server = await EmbeddedServer.start(dir=dir, port=port, binary=servers.program(servers.wanted()))
            return await started.enter_async_context(server)

        yield make
