"""The queues that a dashboard shows: those that it was given, and all of the servers at its URLs."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypeAlias

from leasequeue.errors import InvalidArgument
from leasequeue.queue import AsyncWorkQueue
from leasequeue.queue.shards.naming import shard_names
from leasequeue.queue.shards.opening import find_layouts, with_layout
from leasequeue.tasks.queue import TaskQueue
from leasequeue.wire.discovery import MAX_KEYS, client_at
from leasequeue.wire.endpoints import client_named, close_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leasequeue.wire.endpoints import Client

#: What a dashboard is given.
Source: TypeAlias = "TaskQueue | AsyncWorkQueue | str"

#: The maximum number of queues that are found at a URL.
MAX_FOUND = 10_000
#: How long to wait until queues are looked for again: so many times as long as it took, in these bounds (s).
FIND_TIMES, FIND_OFTEN, FIND_SECONDS = 100.0, 15.0, 300.0
#: How long the server at a URL may be silent (s): a page is waiting.
REPLY_SECONDS = 5.0


class ShownQueues:
    """The queues by name."""

    def __init__(self, *sources: Source) -> None:
        #: By URL; None: the server was not asked yet whether it is a node of a cluster.
        self._clients: dict[str, Client | None] = {}
        self._given: list[TaskQueue | AsyncWorkQueue] = []
        self._found: dict[str, AsyncWorkQueue] = {}
        self._find_at = -math.inf
        #: Whether all queues at the URLs were found.
        self.complete = True
        for one in sources or (None,):
            if isinstance(one, str):
                client_named(one)  # refuses what is no URL
                self._clients[one] = None
            elif isinstance(one, (TaskQueue, AsyncWorkQueue)):
                self._given.append(one)
            else:
                raise InvalidArgument("sources", one, "one or more task queues, queues, or URLs of servers")
        self.by_name()  # refuses those of equal names on different servers

    def by_name(self) -> dict[str, AsyncWorkQueue]:
        """Return the queues. A task may have been registered since with its own queue."""
        queues = dict(self._found)
        for name, queue in self._named():
            known = queues.setdefault(name, queue)
            if known.url != queue.url or known.shards[0].name != queue.shards[0].name:
                raise InvalidArgument("sources", name, "queues with different names, or on one server")
        return queues

    def _named(self) -> Iterator[tuple[str, AsyncWorkQueue]]:
        for one in self._given:
            tasks = one.tasks if isinstance(one, TaskQueue) else ()
            queue = one.queue if isinstance(one, TaskQueue) else one
            for each in (queue, *(task.queue for task in tasks)):
                yield each.name, each

    async def find(self) -> None:
        """Look for the queues at the URLs, unless that was done a moment ago."""
        began = time.monotonic()
        if began < self._find_at or not self._clients:
            return
        found: dict[str, AsyncWorkQueue] = {}
        complete = True
        for url, known_client in [*self._clients.items()]:
            client = known_client or await client_at(url, reply_timeout=REPLY_SECONDS)
            self._clients[url] = client
            layouts, all_of_them = await find_layouts(
                client, max_keys=MAX_KEYS, max_queues=MAX_FOUND, reply_timeout=REPLY_SECONDS
            )
            complete &= all_of_them
            for name, layout in layouts.items():
                if name not in found:
                    queue = self._found.get(name)
                    names = shard_names(name, layout.shards) if layout else (name,)
                    if queue is None or tuple(one.name for one in queue.shards) != names:
                        queue = with_layout(name, client, layout, reply_timeout=REPLY_SECONDS)
                    found[name] = queue
        gone = [queue for name, queue in self._found.items() if queue is not found.get(name)]
        self._found, self.complete = found, complete
        for queue in gone:
            await queue.close()
        took = time.monotonic() - began
        self._find_at = began + min(max(FIND_TIMES * took, FIND_OFTEN), FIND_SECONDS)

    async def close(self) -> None:
        """Close what was opened for the URLs; queues that were given stay open."""
        for queue in self._found.values():
            await queue.close()
        for client in self._clients.values():
            if client is not None:
                await close_client(client)
