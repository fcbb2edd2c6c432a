"""The event loop of a queue in a thread, for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING

import pytest

from leasequeue.spark.options import QueueTarget
from leasequeue.spark.portal import open_queue
from leasequeue.wire.session import SESSIONS

if TYPE_CHECKING:
    from leasequeue import AsyncWorkQueue


@pytest.mark.parametrize("in_cycle", [False, True])
async def test_a_portal_that_is_dropped_while_a_session_is_made_is_closed_later(
    queue: AsyncWorkQueue, *, in_cycle: bool
) -> None:
    """Spark drops readers, which are collected in any thread: here in one that makes another session."""
    block = open_queue(QueueTarget(queue.name, str(queue.url)))
    portal = await asyncio.to_thread(block.__enter__)
    assert (await asyncio.to_thread(portal.call, portal.queue.counts)).total == 0
    blocks: list[object] = [block, portal]
    del block, portal

    def drop() -> None:
        with SESSIONS.lock:
            if in_cycle:  # the collector ends all that it finds, in any order
                cycle = blocks.copy()
                cycle.append(cycle)
                del cycle
            blocks.clear()
            gc.collect()

    dropping = threading.Thread(target=drop, daemon=True)
    dropping.start()
    await asyncio.to_thread(dropping.join, 60)
    assert not dropping.is_alive(), "it waits for what it keeps another thread from doing"
    for thread in threading.enumerate():
        if thread.name == "leasequeue closing":
            await asyncio.to_thread(thread.join, 60)
            assert not thread.is_alive()
