"""Fixtures for all tests, the markers that depend on fixtures, and how tests are given to processes."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import signal
import socket
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import pytest
import redis.utils as redis_utils
from hypothesis import settings
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from xdist.scheduler import LoadScopeScheduling

from leasequeue.embedded import EmbeddedServer
from leasequeue.embedded import server as embedded_server
from leasequeue.testing import Proxy
from leasequeue.wire import connection as connection_settings
from lua.compose.writer import refresh
from tests import servers
from tests.eventually import LIMIT_SECONDS
from tests.ports import free_port
from tests.postgres import Postgres, running_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from xdist.remote import Producer

# What is imported and collected stays: to look for garbage there would take a seventh of the time. It is not
# frozen, as Hypothesis asks the collector who holds a generator of random numbers.
gc.disable()

# The scripts of the files of lua/ as they are now. The processes of pytest-xdist begin after that.
refresh()

# The duration of an example depends on the load of the machine.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

# A parent that ignores SIGINT (`nohup make test &`) would pass that on to every program that a test starts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine a process may stand still for as long as a program would wait for its server.
connection_settings.CONNECT_SECONDS = LIMIT_SECONDS
embedded_server.READY_SECONDS = LIMIT_SECONDS

# Another socket could take the port of a server that a test stops and starts again.
embedded_server._free_port = free_port

# redis-py reads its version from a file for each connection, which takes as long as several calls.
redis_utils.get_lib_version = functools.cache(redis_utils.get_lib_version)

pytest_plugins = ["pytester"]

_names = itertools.count(1)


class MakeServer(Protocol):
    """Start another server of the kind that the tests run on; it is stopped after the test."""

    async def __call__(
        self,
        *,
        dir: Path | None = None,  # noqa: A002 - as in EmbeddedServer.start
        port: int = 0,
    ) -> EmbeddedServer: ...


class OneSession(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Send each test to the first free process, and all that share Spark or a database to the same one.

    The groups of pytest-xdist 3.8 would do that, but pytest 9.2 does not see them.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/spark/connect/"):
            return "spark connect"
        if nodeid.startswith(("tests/outbox/", "tests/docs/test_outbox_page")):
            return "outbox"
        alone = nodeid.startswith("tests/spark/programs/")
        shares = nodeid.startswith(("tests/spark/", "tests/docs/test_spark_pages"))
        return "spark" if shares and not alone else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneSession:
    """Return the scheduler for pytest-xdist."""
    return OneSession(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--seed`."""
    parser.addoption("--seed", metavar="ROW", help="run only the tests that hold this row, such as RWQ-B3")


@pytest.hookimpl(tryfirst=True)  # before `-m` reads the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures that they ask for, and select the tests of `--seed`."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"server", "make_server"}:
            item.add_marker(pytest.mark.server)
        if "spark" in fixtures or item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.spark)
        if fixtures & {"cluster", "nodes"} or item.nodeid.startswith("tests/failover/"):
            item.add_marker(pytest.mark.cluster)
        if item.nodeid.startswith("tests/browser/"):
            item.add_marker(pytest.mark.browser)
        if "bench" in fixtures:  # it starts `leasequeue worker` as a process
            item.add_marker(pytest.mark.slow)
    if row := config.getoption("--seed"):
        others = [item for item in items if row not in rows_of(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if row in rows_of(item)]


def pytest_collection_finish() -> None:
    """Collect garbage again."""
    gc.enable()


def rows_of(item: pytest.Item) -> set[str]:
    """Return the ids of the rows that a test is marked with."""
    return {row for marker in item.iter_markers("seed") for row in marker.args}


@pytest.fixture(scope="session")
def server() -> Iterator[servers.Running]:
    """Run the server that all tests of this process share."""
    try:
        with servers.running(servers.wanted()) as running:
            yield running
    except servers.ServerMissing as missing:
        raise pytest.fail.Exception(str(missing), pytrace=False) from None


@pytest.fixture
def redis_url(server: servers.Running) -> str:
    """Return the url of the server. The server is emptied first if the tests started it."""
    if server.ours:
        # A client would take a fifth of the time of a quick test.
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), timeout=LIMIT_SECONDS) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(64) == b"+OK\r\n"
    return server.url


@pytest.fixture(scope="session")
def server_of_rows() -> Iterator[Postgres]:
    """Run the database that all tests of this process share."""
    with running_postgres() as running:
        yield running


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """Return a plain client that never retries and decodes nothing."""
    once = Retry(NoBackoff(), 0)
    async with Redis.from_url(
        redis_url, retry=once, socket_timeout=LIMIT_SECONDS, socket_connect_timeout=LIMIT_SECONDS
    ) as client:
        yield client


@pytest.fixture
def name() -> str:
    """Return a queue name that is unique over all tests and processes."""
    return f"{os.environ.get('PYTEST_XDIST_WORKER', 'test')}-{next(_names)}"


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[Proxy]:
    """Return a proxy in front of the server; it can delay, cut and refuse connections."""
    async with Proxy(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def make_server() -> AsyncIterator[MakeServer]:
    """Return a function that starts servers, for tests that kill and restart them."""
    async with AsyncExitStack() as started:

        async def make(*, dir: Path | None = None, port: int = 0) -> EmbeddedServer:  # noqa: A002 - as there
            program = servers.program(servers.wanted())
            server = await EmbeddedServer.start(dir=dir, port=port, binary=program, password="")
            return await started.enter_async_context(server)

        yield make
