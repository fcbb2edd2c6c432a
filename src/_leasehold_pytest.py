"""The pytest plugin: fixtures for tests of code that uses Leasehold.

pytest imports every installed plugin when it starts. So this module is outside the package and imports
nothing of Leasehold until a test uses a fixture. The implementation is in `leasehold.testing.plugin`.
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
    from leasehold.testing.plugin import Inline, Queues, Workers
else:
    try:
        # The strict mode of pytest-asyncio requires its decorator.
        from pytest_asyncio import fixture as async_fixture
    except ImportError:  # anyio's plugin accepts plain fixtures
        async_fixture = pytest.fixture


@pytest.fixture(scope="session")
def leasehold_server() -> Iterator[Server]:
    """The server at LEASEHOLD_TEST_URL or REDIS_URL, or one that is started for the test run."""
    from leasehold.errors import EmbeddedServerError
    from leasehold.testing.plugin import running_server

    try:
        with running_server() as server:
            yield server
    except EmbeddedServerError as error:
        pytest.fail(f"{error} (or name a server in LEASEHOLD_TEST_URL)", pytrace=False)


@pytest.fixture
def leasehold_clock() -> Clock:
    """A clock that the test moves, as with `advance(60)`. The queues of the test use it."""
    from leasehold.testing.clock import Clock

    return Clock()


@async_fixture
async def leasehold_faults(leasehold_server: Server) -> AsyncIterator[Proxy]:
    """A proxy to the server that injects network faults. The queues of the test connect through it."""
    from leasehold.testing.proxy import Proxy

    async with Proxy(leasehold_server.url) as proxy:
        yield proxy


@pytest.fixture
def _leasehold_requested(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The clock and the proxy for the queues of this test, or None if the test does not use them."""
    return {
        name: request.getfixturevalue(f"leasehold_{name}")
        if f"leasehold_{name}" in request.fixturenames
        else None
        for name in ("clock", "faults")
    }


@async_fixture
async def leasehold_queues(
    leasehold_server: Server, _leasehold_requested: dict[str, Any]
) -> AsyncIterator[Queues]:
    """Open queues that no other test uses: `leasehold_queues("emails")`. The test's end removes them."""
    from leasehold.testing.plugin import Queues

    queues = Queues(leasehold_server, **_leasehold_requested)
    try:
        yield queues
    finally:
        await queues.close()


@pytest.fixture
def leasehold_queue(leasehold_queues: Queues) -> AsyncWorkQueue:
    """A queue that no other test uses. The test's end removes it."""
    return leasehold_queues()


@async_fixture
async def leasehold_worker(leasehold_queues: Queues) -> AsyncIterator[Workers]:
    """Make workers: `leasehold_worker(concurrency=5)`. The test's end stops them."""
    from leasehold.testing.plugin import Workers

    workers = Workers(leasehold_queues)
    try:
        yield workers
    finally:
        await workers.close()


@pytest.fixture
def leasehold_inline(leasehold_queues: Queues) -> Iterator[Inline]:
    """Run tasks as soon as they are added: `leasehold_inline(app.tasks)`. The test's end undoes this.

    A test that asks for it and does not call it fails: its tasks went to the server of the program.
    """
    from leasehold.testing.plugin import Inline

    inlines = Inline(leasehold_queues)
    try:
        yield inlines
    finally:
        inlines.close()
    if not inlines._made:  # noqa: SLF001 - of the same plugin
        pytest.fail(
            "leasehold_inline was asked for and not called: tasks that the test added went to the server "
            "of the program. Call leasehold_inline(tasks) with its task queues.",
            pytrace=False,
        )
