"""Dashboards for the tests, and clients of them."""

from __future__ import annotations

import inspect
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from leasequeue.dashboard import dashboard
from leasequeue.dashboard.view import Page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette

    from leasequeue.dashboard.action import Action
    from leasequeue.dashboard.sources import Source


@asynccontextmanager
async def client_of(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of an application in the event loop of the test."""
    transport = httpx.ASGITransport(app=app, **options)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
        yield client


@asynccontextmanager
async def open_board(*sources: Source, **options: Any) -> AsyncIterator[tuple[Starlette, httpx.AsyncClient]]:
    """Yield a dashboard and a client of it; close it after that."""
    app = dashboard(*sources, **options)
    async with app.router.lifespan_context(app), client_of(app) as client:
        yield app, client


def parameters_of(page: Page | Action) -> list[str]:
    """Return the parameters of the query or the form that the module of a page or an action reads."""
    module = inspect.getmodule(page.read if isinstance(page, Page) else page.call)
    assert module is not None
    source = inspect.getsource(module)
    found = re.findall(r'(?:\bget|field|checked_query)\((?:[\w.]+, )?"([a-z_]+)"', source)
    return [*dict.fromkeys([*found, "letter", "did", "count", "sure"])]
