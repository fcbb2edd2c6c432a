"""Workers that only say what they are, and queues that have all that a page shows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from leasequeue import AsyncWorkQueue, Item
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from collections.abc import Mapping


async def register(url: str, queue: str, worker: str, *, alive_ms: int = 3_600_000, **about: Any) -> None:
    """Register a worker on a queue, in a session of its own; it sends no other heartbeat."""
    facts: Mapping[str, Any] = {
        "worker": worker,
        "name": worker,
        "host": "node-7",
        "pid": 4711,
        "concurrency": 10,
        "started": time.time() * 1000,
        "versions": {"leasequeue": "0.1.0", "python": "3.12.1"},
        "active": len(about.get("running", ())),
        **about,
    }
    async with AsyncWorkQueue.from_url(url, queue) as one:
        await engine_of(one).registry.beat(facts, alive_ms=alive_ms, first=True)


async def fill(queue: AsyncWorkQueue, url: str) -> None:
    """Give a queue an item, a schedule and a worker, if it has none."""
    await queue.add_item(Item(b"data", id="one"))
    await queue.schedules.every(3600, "walk")
    await register(url, queue.name, "walk", running=[["one", "send_mail", time.time() * 1000]])
