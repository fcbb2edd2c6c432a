"""Stop to wait for a result when the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")


async def until_disconnected(request: Request, work: Coroutine[Any, Any, T], *, watch: bool) -> T | None:
    """Return what `work` returns, or raise its error; None if the client has closed the connection before.

    Args:
        request: The request, whose body was read.
        work: What takes some time. It is cancelled if the client has gone.
        watch: Whether to look for that; what is done at once needs no watching.
    """
    if not watch:
        return await work
    working = asyncio.create_task(work, name="leasequeue wait")
    gone = asyncio.create_task(_disconnected(request), name="leasequeue watch client")
    both = (working, gone)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for one in both:
            one.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
