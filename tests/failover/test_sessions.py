"""Sessions while two servers are primaries: all of a process follow the first that finds the new one."""

from __future__ import annotations

import asyncio
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from leasequeue import AsyncWorkQueue, Item
from tests.eventually import LIMIT_SECONDS
from tests.failover.topologies import PEERS, Watched
from tests.queue.asking import blocked, take

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator


@pytest.fixture
def elsewhere() -> Iterator[asyncio.AbstractEventLoop]:
    """Run another event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.slow
async def test_all_sessions_leave_the_old_primary_when_one_connection_finds_the_new(
    elsewhere: asyncio.AbstractEventLoop,
) -> None:
    async def there(call: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, elsewhere))

    async with Watched() as topology, topology.client() as client, AsyncWorkQueue("q", client) as queue:
        old = await topology.primary()
        await queue.add_item(Item(b"x", id="before"))
        assert await there(queue.renew(await take(queue, 600), 600))
        await topology.lock(old, *PEERS)
        new = await topology.promoted(old)

        waiting = asyncio.create_task(queue.lease(600))
        await blocked(new.redis, 1)
        await queue.add_item(Item(b"x", id="after"))
        async with asyncio.timeout(LIMIT_SECONDS):
            lease = await waiting
        assert lease is not None
        assert lease.id == "after"
        assert await there(queue.renew(lease, 600)), "the other event loop asks the new primary, too"
        await there(queue.close())
