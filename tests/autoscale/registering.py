"""Workers in this process that only register."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def register(url: str, queue: str, name: str, concurrency: int) -> AsyncIterator[Worker]:
    """Run a worker whose queue has no items."""
    worker = Worker(name=name, concurrency=concurrency)

    @worker.handler(AsyncWorkQueue.from_url(url, queue))
    async def handle(_: bytes) -> None:
        raise AssertionError

    running = asyncio.create_task(worker.run())
    try:
        await worker.started()
        yield worker
    finally:
        worker.stop()
        await running
