"""The queues of jobs, each opened by its name: only its server knows whether it has shards, and how many."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from leasequeue.errors import LeasequeueError
from leasequeue.queue.shards.opening import open_queue
from leasequeue.wire.endpoints import client_for, close_client

if TYPE_CHECKING:
    from leasequeue.autoscale.config import JobConfig
    from leasequeue.queue import AsyncWorkQueue
    from leasequeue.wire.endpoints import Client

#: How often the server is asked again (s): a queue may be made later than its job, or anew.
LOOK_EVERY = 30.0


class QueueKey(NamedTuple):
    """What identifies the queue of a job."""

    url: str
    queue: str
    cluster: bool


class JobQueues:
    """Opens queues when they are first asked for, and again if they have other shards since.

    Attributes:
        served: Those that are open, each with shards as its shards; the list changes.
    """

    def __init__(self, **how: Any) -> None:
        self.served: list[AsyncWorkQueue] = []
        self._how = how
        self._clients: dict[tuple[str, bool], Client] = {}
        self._queues: dict[QueueKey, AsyncWorkQueue] = {}
        self._look_at: dict[QueueKey, float] = {}
        self._locks: dict[QueueKey, asyncio.Lock] = {}

    def client(self, url: str, name: str, *, cluster: bool) -> Client:
        """Return the client of a server; all queues share its connections."""
        if (server := (url, cluster)) not in self._clients:
            self._clients[server] = client_for(url, name, cluster=cluster)
        return self._clients[server]

    async def get(self, job: JobConfig) -> AsyncWorkQueue:
        """Return the queue of a job.

        Raises:
            InvalidArgument, ServerError: As in `open_queue`, if it is not open yet.
        """
        key = QueueKey(job.url, job.queue, job.cluster)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if time.monotonic() >= self._look_at.get(key, -math.inf):
                known = self._queues.get(key)
                try:
                    await self._open(key, known)
                except LeasequeueError:
                    if known is None:  # else what calls it is told
                        raise
            return self._queues[key]

    async def _open(self, key: QueueKey, known: AsyncWorkQueue | None) -> None:
        client = self.client(key.url, key.queue, cluster=key.cluster)
        queue = await open_queue(key.queue, client, **self._how)
        self._look_at[key] = time.monotonic() + LOOK_EVERY
        if known is None or [one.name for one in known.shards] != [one.name for one in queue.shards]:
            self._queues[key] = queue
            self.served[:] = [shard for one in self._queues.values() for shard in one.shards]
            if known is not None:
                await known.close()

    async def close(self) -> None:
        """Close the queues and the connections."""
        for queue in self._queues.values():
            await queue.close()
        for client in self._clients.values():
            await close_client(client)
