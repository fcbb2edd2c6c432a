"""The pytest plugin: fixtures for tests of code that uses Leasequeue.

pytest imports every installed plugin when it starts. So this module is outside the package and imports
nothing of Leasequeue until a test uses a fixture. The implementation is in `leasequeue.testing.plugin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pytest_asyncio import fixture as async_fixture

    from leasequeue import AsyncWorkQueue
    from leasequeue.embedded.server import RunningServer
    from leasequeue.testing import Clock, Proxy
    from leasequeue.testing.plugin import Inline, Queues, Workers
else:
    try:
        # The strict mode of pytest-asyncio requires its decorator.
        from pytest_asyncio import fixture as async_fixture
    except ImportError:  # anyio's plugin accepts plain fixtures
        async_fixture = pytest.fixture


@pytest.fixture(scope="session")
def leasequeue_server() -> Iterator[RunningServer]:
    """The server at LEASEQUEUE_TEST_URL or REDIS_URL, or one that is started for the test run."""
    from leasequeue.errors import EmbeddedServerError
    from leasequeue.testing.plugin import running_server

    try:
        with running_server() as server:
            yield server
    except EmbeddedServerError as error:
        pytest.fail(f"{error} (or name a server in LEASEQUEUE_TEST_URL)", pytrace=False)


@pytest.fixture
def leasequeue_clock() -> Clock:
    """A clock that the test moves, as with `advance(60)`. The queues of the test use it."""
    from leasequeue.testing.clock import Clock

    return Clock()


@async_fixture
async def leasequeue_faults(leasequeue_server: RunningServer) -> AsyncIterator[Proxy]:
    """A proxy to the server that injects network faults. The queues of the test connect through it."""
    from leasequeue.testing.proxy import Proxy

    async with Proxy(leasequeue_server.url) as proxy:
        yield proxy


@pytest.fixture
def _leasequeue_requested(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The clock and the proxy for the queues of this test, or None if the test does not use them."""
    return {
        name: request.getfixturevalue(f"leasequeue_{name}")
        if f"leasequeue_{name}" in request.fixturenames
        else None
        for name in ("clock", "faults")
    }


@async_fixture
async def leasequeue_queues(
    leasequeue_server: RunningServer, _leasequeue_requested: dict[str, Any]
) -> AsyncIterator[Queues]:
    """Open queues that no other test uses: `leasequeue_queues("emails")`. The test's end removes them."""
    from leasequeue.testing.plugin import Queues

    queues = Queues(leasequeue_server, **_leasequeue_requested)
    try:
        yield queues
    finally:
        await queues.close()


@pytest.fixture
def leasequeue_queue(leasequeue_queues: Queues) -> AsyncWorkQueue:
    """A queue that no other test uses. The test's end removes it."""
    return leasequeue_queues()


@async_fixture
async def leasequeue_worker(leasequeue_queues: Queues) -> AsyncIterator[Workers]:
    """Make workers: `leasequeue_worker(concurrency=5)`. The test's end stops them."""
    from leasequeue.testing.plugin import Workers

    workers = Workers(leasequeue_queues)
    try:
        yield workers
    finally:
        await workers.close()


@pytest.fixture
def leasequeue_inline(leasequeue_queues: Queues) -> Iterator[Inline]:
    """Run tasks as soon as they are added: `leasequeue_inline(app.tasks)`. The test's end undoes this.

    A test that asks for it and does not call it fails: its tasks went to the server of the program.
    """
    from leasequeue.testing.plugin import Inline

    inlines = Inline(leasequeue_queues)
    try:
        yield inlines
    finally:
        inlines.close()
    if not inlines._made:  # noqa: SLF001 - of the same plugin
        pytest.fail(
            "leasequeue_inline was asked for and not called: tasks that the test added went to the server "
            "of the program. Call leasequeue_inline(tasks) with its task queues.",
            pytrace=False,
        )
