"""A queue for synchronous code such as Spark's: its event loop runs in a thread."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.from_thread import start_blocking_portal

from leasequeue.durations import Backoff
from leasequeue.errors import InvalidArgument, LeasequeueError, ServerError
from leasequeue.queue import AsyncWorkQueue
from leasequeue.queue.queue import engine_of, engines_of
from leasequeue.queue.shards.opening import layout_of
from leasequeue.queue.shards.opening import open_queue as open_by_name
from leasequeue.wire.endpoints import client_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future

    from anyio.from_thread import BlockingPortal

    from leasequeue.queue import Counts
    from leasequeue.queue.bulk import Bulk
    from leasequeue.spark.options import QueueTarget

T = TypeVar("T")

#: What is open, so that it is no garbage where Spark has dropped a reader: the collector would end it itself.
_OPEN: set[ExitStack] = set()


class QueuePortal:
    """A queue, and the portal to the thread that runs its event loop.

    Attributes:
        target: What was opened, with its shards.
        queue: The queue.
        bulks: The calls of each shard for rows that are already encoded; without shards, those of the queue.
        payloads: What encodes and decodes their data, and results.
    """

    def __init__(self, target: QueueTarget, queue: AsyncWorkQueue, portal: BlockingPortal) -> None:
        self.target, self.queue = target, queue
        self.payloads = engines_of(queue.shards[0]).payloads
        self._portal = portal
        # A queue has an engine for each event loop: these are those of the portal's.
        self.bulks: dict[AsyncWorkQueue, Bulk] = portal.call(
            lambda: {shard: engine_of(shard).bulk for shard in queue.shards}
        )

    @property
    def bulk(self) -> Bulk:
        """The calls of a queue that has no shards, or of a shard."""
        (bulk,) = self.bulks.values()
        return bulk

    def bulk_of(self, item_id: str, group: str | None = None) -> Bulk:
        """Return the calls of the shard of an item."""
        return self.bulks[self.queue.shard_of(item_id, group=group)]

    def with_ids(self, ids: Iterable[bytes]) -> dict[AsyncWorkQueue, list[bytes]]:
        """Return which ids each shard may have: of those that groups have, all of them."""
        if self.target.layout is not None and self.target.layout.shard_by == "group":
            return {shard: [*ids] for shard in self.queue.shards}
        found: dict[AsyncWorkQueue, list[bytes]] = {}
        for item_id in ids:
            found.setdefault(self.queue.shard_of(item_id.decode()), []).append(item_id)
        return found

    def call(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Run a coroutine function in the queue's event loop and return its result."""
        return self._portal.call(function, *arguments)

    def start(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> Future[T]:
        """Start a coroutine function in the queue's event loop and return a future."""
        return self._portal.start_task_soon(function, *arguments)


@contextmanager
def open_queue(target: QueueTarget, find_for: float | None = None) -> Iterator[QueuePortal]:
    """Open a queue for the length of a block; with `find_for`, look for its shards for so many seconds."""
    with ExitStack() as stack:
        _OPEN.add(stack)
        stack.callback(_OPEN.discard, stack)
        portal = stack.enter_context(start_blocking_portal())
        if find_for is not None and target.layout is None:
            target = portal.call(call_with_retries, partial(_located, target), find_for)
        how = {} if target.layout is None else target.layout._asdict()
        how |= {"cluster": target.cluster, "codec": target.codec}
        queue = AsyncWorkQueue.from_url(target.url, target.queue, **how)
        stack.callback(portal.call, queue.close)
        try:
            yield QueuePortal(target, queue, portal)
        except GeneratorExit:
            # Spark drops readers without ending them. They are collected in any thread, also in one that
            # makes a session: it holds the lock that closing another one needs.
            Thread(target=stack.pop_all().close, name="leasequeue closing").start()
            raise


async def _located(target: QueueTarget) -> QueueTarget:
    """Return a target with the shards that are noted for its queue."""
    client = client_for(target.url, target.queue, cluster=target.cluster)
    async with await open_by_name(target.queue, client) as queue:
        return replace(target, layout=layout_of(queue))


def check_server(target: QueueTarget) -> tuple[QueueTarget, Counts]:
    """Check at plan time that the server answers, accepts the login and can hold the queue; find its shards.

    Raises:
        InvalidArgument: If the queue's name does not suit a cluster, the option `cluster` is missing, or the
            queue has other shards than the target.
        ServerError: If the server cannot be reached or refuses.
    """
    try:
        with open_queue(target, find_for=0) as portal:
            return portal.target, portal.call(portal.queue.counts)
    except ServerError as error:
        if not target.cluster and any(word in str(error) for word in ("CROSSSLOT", "MOVED")):
            raise InvalidArgument("cluster", "false", "true, as this server is part of one") from error
        raise


def check_queue(target: QueueTarget, instead: str) -> tuple[QueueTarget, Counts]:
    """Check at plan time that the queue exists.

    Args:
        target: The queue.
        instead: What the option `mayBeMissing` would return, for the message.
    """
    target, counts = check_server(target)
    if any(counts) or target.layout is not None:
        return target, counts
    with open_queue(target) as portal:
        was_used = portal.call(portal.bulk.was_used)
    if not was_used:
        allowed = f"a queue that has been used; with the option mayBeMissing {instead}"
        raise InvalidArgument("queue", target.queue, allowed)
    return target, counts


def codec_of(queue: AsyncWorkQueue, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the option that names the codec of a task's queue, unless the options have it."""
    payloads = engines_of(queue.shards[0]).payloads
    if not payloads.codecs or "codec" in map(str.lower, options):
        return {}
    if payloads.place is None:
        allowed = "`module:name`, as the queue of the task has a codec, and executors have to import it"
        raise InvalidArgument("codec", None, allowed)
    return {"codec": payloads.place}


async def call_with_retries(call: Callable[[], Awaitable[T]], retry_timeout: float) -> T:
    """Repeat a call that is safe to repeat while the server is unavailable."""
    until, backoff = time.monotonic() + retry_timeout, Backoff()
    while True:
        try:
            return await call()
        except LeasequeueError as error:
            pause = backoff.next()
            if not error.transient or time.monotonic() + pause > until:
                raise
        await asyncio.sleep(pause)
