"""The pytest plugin: fixtures for tests of code that uses Leasehold.

It stands outside the package because pytest imports each installed plugin at its start: a project that uses
no fixture of ours imports nothing of Leasehold by it. All the work is done in `leasehold.testing.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pytest_asyncio import fixture as async_fixture

    from leasehold import AsyncWorkQueue
    from leasehold.embedded.server import Server
    from leasehold.testing import Clock, Proxy
    from leasehold.testing.plugin import Queues, Workers
else:
    try:
        # Under pytest-asyncio's strict mode its own decorator is needed.
        from pytest_asyncio import fixture as async_fixture
    except ImportError:  # anyio's plugin runs plain ones
        async_fixture = pytest.fixture


@pytest.fixture(scope="session")
def leasehold_server() -> Iterator[Server]:
    """The server of the test run: that of LEASEHOLD_TEST_URL or REDIS_URL, or else one of its own."""
    from leasehold.errors import EmbeddedServerError
    from leasehold.testing.plugin import running_server

    try:
        with running_server() as server:
            yield server
    except EmbeddedServerError as error:
        pytest.fail(f"{error} (or name a server in LEASEHOLD_TEST_URL)", pytrace=False)


@pytest.fixture
def leasehold_clock() -> Clock:
    """A clock that the test moves: `advance(60)`. The queues of a test that asks for it go by it."""
    from leasehold.testing.clock import Clock

    return Clock()


@async_fixture
async def leasehold_faults(leasehold_server: Server) -> AsyncIterator[Proxy]:
    """A way to the server that fails on demand. The queues of a test that asks for it go through it."""
    from leasehold.testing.proxy import Proxy

    async with Proxy(leasehold_server.url) as proxy:
        yield proxy


@pytest.fixture
def _leasehold_asked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the queues of this test go by and through, as far as the test has asked for it."""
    return {
        name: request.getfixturevalue(f"leasehold_{name}")
        if f"leasehold_{name}" in request.fixturenames
        else None
        for name in ("clock", "faults")
    }


@async_fixture
async def leasehold_queues(
    leasehold_server: Server, _leasehold_asked: dict[str, Any]
) -> AsyncIterator[Queues]:
    """Opens queues that no other test has: `leasehold_queues("emails")`. They go with the test."""
    from leasehold.testing.plugin import Queues

    queues = Queues(leasehold_server, **_leasehold_asked)
    try:
        yield queues
    finally:
        await queues.close()


@pytest.fixture
def leasehold_queue(leasehold_queues: Queues) -> AsyncWorkQueue:
    """A queue that no other test has, and that goes with the test."""
    return leasehold_queues()


@async_fixture
async def leasehold_worker(leasehold_queues: Queues) -> AsyncIterator[Workers]:
    """Makes workers: `leasehold_worker(concurrency=5)`, to be drained. None outlives the test."""
    from leasehold.testing.plugin import Workers

    workers = Workers(leasehold_queues)
    try:
        yield workers
    finally:
        await workers.close()
