"""The fixtures of this folder."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from leasequeue import AsyncWorkQueue
from leasequeue.dashboard import Rights, dashboard
from tests.browser.visitors import Visitor, chromium, served

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser

    from leasequeue.dashboard.sampler import QueueHistory
    from leasequeue.dashboard.sources import Source


class Visit(Protocol):
    """Serve a dashboard until the end of the test, and return a visitor of it."""

    async def __call__(
        self,
        *sources: Source,
        sampled: dict[str, QueueHistory] | None = None,  # what it has seen before
        **options: Any,
    ) -> Visitor: ...


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """Run Chromium during the test."""
    async with chromium() as browser:
        yield browser


@pytest.fixture
async def visit(browser: Browser) -> AsyncIterator[Visit]:
    """Serve dashboards. At the end, no page may have asked another origin or broken its policy."""
    visitors = []
    async with AsyncExitStack() as stack:

        async def visit(
            *sources: Source, sampled: dict[str, QueueHistory] | None = None, **options: Any
        ) -> Visitor:
            app = dashboard(*sources, **{"rights": Rights.all, **options})
            app.state.board.sampler._every = 0.2  # the pages ask every 3 s
            app.state.board.sampler.histories |= sampled or {}
            visitors.append(Visitor(browser, await stack.enter_async_context(served(app))))
            return visitors[-1]

        yield visit
        # An open page would get no answer from the servers, which stop before the browser.
        for context in browser.contexts:
            await context.close()
    assert [one for visitor in visitors for one in visitor.complaints] == []


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[AsyncWorkQueue]:
    """Open a queue on the server of the tests."""
    async with AsyncWorkQueue.from_url(redis_url, "orders") as queue:
        yield queue
