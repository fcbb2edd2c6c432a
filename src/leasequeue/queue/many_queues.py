"""Leasing from several queues with one call: fill from the first, then from the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from leasequeue.durations import Duration, check_bool, check_int, check_list, to_ms
from leasequeue.errors import InvalidArgument, LeasequeueError, UnreadablePayload
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import encoded
from leasequeue.queue.leasing import UNKNOWN
from leasequeue.queue.queue import (
    MAX_AT_ONCE,
    AsyncWorkQueue,
    engine_of,
    engines_of,
    lease_level,
    next_level_of,
    read_leases,
    waiting_time,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.leasing import LeasedItem

log = Log("leasequeue.queue")


async def lease_from(
    queues: Sequence[AsyncWorkQueue],
    count: int,
    lease_time: Duration,
    *,
    block: bool = True,
    timeout: Duration | None = None,
) -> list[Lease]:
    """Lease up to `count` items from several queues: from the first while it has any, then from the next.

        leases = await lease_from([urgent, normal], 10, 30)
        for lease in leases:
            print(lease.queue.name, lease.id)

    Each queue is leased from in its own steps, as `lease_many` does. If all are empty, the call waits for the
    first item that arrives in any of them. The queues may be on different servers.

    Args:
        queues: The queues, in the order in which they are asked; each one once.
        count: The maximum number of items, 1 to 1,000.
        lease_time: How long each is leased, in seconds.
        block: Whether to wait while all queues are empty.
        timeout: How long to wait, in seconds, as in `lease`.

    Returns:
        The leases in the order of the queues; `Lease.queue` is the queue of each. Empty if there was no item
        (in time). If a queue cannot be leased from, what the ones before it gave is returned.

    Raises:
        InvalidArgument: If an argument cannot be used; nothing was sent.
        QueueClosed, ServerError, UnreadablePayload: As in `AsyncWorkQueue.lease`, if nothing was leased
            before.
    """
    chosen = check_list("queues", queues, "queues")
    if not chosen or not all(isinstance(one, AsyncWorkQueue) for one in chosen):
        raise InvalidArgument("queues", queues, "one AsyncWorkQueue or more")
    if len({id(one) for one in chosen}) < len(chosen):
        raise InvalidArgument("queues", [one.name for one in chosen], "each queue once")
    check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
    lease_ms = to_ms("lease_time", lease_time)
    wait = waiting_time(timeout, block=check_bool("block", block))
    limit = asyncio.timeout(wait)
    try:
        async with limit:
            while True:
                leases = await _take(chosen, count, lease_ms)
                if leases or not block:
                    return leases
                shards = [shard for one in chosen for shard in one.shards]
                if leases := await _Arrivals(shards, count, lease_ms).wait():
                    return leases
    except TimeoutError:
        if not limit.expired():
            raise
        return []


async def _take(queues: Sequence[AsyncWorkQueue], count: int, lease_ms: int) -> list[Lease]:
    """Lease what waits, in the order of the queues."""
    leases: list[Lease] = []
    try:
        for queue in queues:
            may_have_more = True
            while may_have_more:
                may_have_more = False
                for shard in queue._in_turn():  # noqa: SLF001 - for this
                    left = count - len(leases)
                    # Others may have higher levels: so few of a shard of which nothing is known.
                    asked = max(1, left // len(queue.shards)) if next_level_of(shard) == UNKNOWN else left
                    found, level = await lease_level(shard, asked, lease_ms, refuse=True)
                    leases += found
                    if len(leases) == count:
                        return leases
                    may_have_more = may_have_more or len(found) == asked or level is not None
    except LeasequeueError as error:
        if not leases:
            raise
        log.warning("only %d of %d items were leased: %s", len(leases), count, error)
    except asyncio.CancelledError:
        for shard in (shard for queue in queues for shard in queue.shards):
            _release_soon(shard, [lease for lease in leases if lease.queue is shard])
        raise
    return leases


def _release_soon(queue: AsyncWorkQueue, leases: Sequence[Lease]) -> None:
    if (engine := engines_of(queue).running) is not None:
        engine.release_soon([(encoded(lease), lease.token) for lease in leases])


class _Arrivals:
    """Waits until an item arrives in one of several queues, or is delivered.

    It takes up to `count` delivered items, whose lease time is `lease_ms`.
    """

    def __init__(self, queues: Sequence[AsyncWorkQueue], count: int, lease_ms: int) -> None:
        self.queues = queues
        self.lease_ms = lease_ms
        self.room = count
        self.delivered: dict[AsyncWorkQueue, list[Lease]] = {queue: [] for queue in queues}
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self) -> list[Lease]:
        """Return what was delivered; an empty list if items may wait in a queue."""
        watchers = [(queue, _ArrivalWatcher(self, queue)) for queue in self.queues]
        try:
            if all(engine_of(queue).leasing.watch(watcher) for queue, watcher in watchers):
                await self.news
        except asyncio.CancelledError:
            for queue, leases in self.delivered.items():
                _release_soon(queue, leases)
            raise
        finally:
            self.room = 0
            for queue, watcher in watchers:
                engines_of(queue).unwatch(watcher)
            if self.news.done() and not self.news.cancelled():
                self.news.exception()  # it may come while nothing awaits it
        return [lease for leases in self.delivered.values() for lease in leases]

    def notify(self, error: LeasequeueError | None = None) -> None:
        """End the wait, if it has not ended."""
        if not self.news.done():
            if error is None:
                self.news.set_result(None)
            else:
                self.news.set_exception(error)


class _ArrivalWatcher:
    """See `Watcher`: what one of the queues notifies."""

    def __init__(self, arrivals: _Arrivals, queue: AsyncWorkQueue) -> None:
        self._arrivals = arrivals
        self._queue = queue

    def arrived(self) -> bool:
        """See `Watcher`."""
        self._arrivals.notify()
        return self._arrivals.room > 0

    def failed(self, error: LeasequeueError) -> None:
        """See `Watcher`."""
        self._arrivals.room = 0  # the call fails: what is delivered now would be lost
        self._arrivals.notify(error)

    def wanted_lease_ms(self) -> int | None:
        """See `Watcher`."""
        return self._arrivals.lease_ms if self._arrivals.room > 0 else None

    def delivered(self, item: LeasedItem) -> bool:
        """See `Watcher`."""
        if self._arrivals.room == 0:
            return False
        try:
            found = read_leases(self._queue, [item])
        except UnreadablePayload as error:
            self.failed(error)
            return True
        self._arrivals.room -= 1
        self._arrivals.delivered[self._queue] += found
        self._arrivals.notify()
        return True
