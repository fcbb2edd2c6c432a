"""Measure queues by their size: `python -m benchmarks.size [10000000]`, for half an hour; then with 4 GB.

Queues of 1,000 and 100,000 waiting items, and one of the size that is given, each in another database of one
server; a tenth as many more are leased, dead and scheduled. Shown are the memory of an item, the server's CPU
time to add, lease and complete one while the others wait, and what calls take that read, check or empty a
queue, with the longest of their commands. Where others compute beside it, compare ratios.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections import defaultdict
from contextlib import AsyncExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from benchmarks.measure import metered, take_turns
from leasequeue import AsyncWorkQueue, Failure, Item
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from leasequeue import Lease

#: Items of one call and calls at once; how long leases and delays last (s).
CALL, AT_ONCE, LONG = 1_000, 4, 7 * 86_400.0
ROUNDS, ITEMS, DATA = 9, 500, b"x" * 100


class Sized:
    """A queue of one size, and the client that observes its database."""

    def __init__(self, size: int, queue: AsyncWorkQueue, redis: Redis) -> None:
        self.size, self.queue, self.redis = size, queue, redis
        #: µs of the server for an item, by step and items of a call.
        self.costs: defaultdict[tuple[str, int], list[float]] = defaultdict(list)

    async def fill(self) -> None:
        """Add the items by bulk adds, and print what one takes."""
        before = int((await self.redis.info("memory"))["used_memory"])
        async with metered(self.redis, self.size) as sample:
            await self._add(self.size)
        used = int((await self.redis.info("memory"))["used_memory"]) - before
        cost = 1e6 * sample.server_cpu / self.size
        print(
            f"{self.size:,}: {used / self.size:.0f} bytes, {cost:.1f} µs of the server to add one", flush=True
        )
        await self._add(self.size // 10, delay=LONG)
        await self._add(self.size // 5)
        for at in range(0, self.size // 5, min(CALL, self.size // 10)):
            leases = await self.queue.lease_many(min(CALL, self.size // 10), LONG)
            if at < self.size // 10:
                await self.queue.fail_many([Failure(lease, "ValueError: bad") for lease in leases])

    async def _add(self, count: int, **how: Any) -> None:
        for start in range(0, count, CALL * AT_ONCE):
            sizes = [min(CALL, count - at) for at in range(start, min(count, start + CALL * AT_ONCE), CALL)]
            calls = (self.queue.add_items([Item(DATA) for _ in range(size)], **how) for size in sizes)
            await asyncio.gather(*calls)

    async def round(self) -> None:
        """Add, lease and complete items, alone and 250 in a call; the size stays."""
        for count in (1, 250):
            held: list[Lease] = []
            for what in ("add", "lease", "complete"):
                async with metered(self.redis, ITEMS) as sample:
                    for at in range(0, ITEMS, count):
                        if what == "add":
                            await self.queue.add_items([Item(DATA) for _ in range(count)])
                        elif what == "lease":
                            held += await self.queue.lease_many(count, LONG)
                        else:
                            await self.queue.complete_many(held[at : at + count])
                self.costs[what, count].append(1e6 * sample.server_cpu / ITEMS)

    async def calls(self) -> None:
        """Print what calls take that read, check and empty the queue."""
        queue = self.queue
        [first] = await queue.peek()
        await self._timed("counts", queue.counts)
        await self._timed("stats", queue.stats)
        await self._timed("peek", lambda: queue.peek(100))
        await self._timed("inspect the middle", lambda: queue.inspect(start=self.size // 2, count=100))
        await self._timed("find", lambda: queue.find(first.id))
        await self._timed("light clean", queue.light_clean)
        await self._timed("deep clean", queue.deep_clean)
        await self._timed("fsck", queue.admin.fsck)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"  {peak:.0f} MB is the peak of this process")
        await self._timed("purge", queue.admin.purge)
        await self._timed("delete", queue.admin.delete)

    async def _timed(self, what: str, call: Callable[[], Awaitable[object]]) -> None:
        await self.redis.slowlog_reset()
        async with metered(self.redis, 1) as sample:
            await call()
        longest = max([one["duration"] for one in await self.redis.slowlog_get(1000)], default=0) / 1000
        print(
            f"  {what}: {sample.seconds:.3f} s, {sample.trips:,} commands, {sample.server_cpu:.3f} s of the "
            f"server, {longest:.1f} ms the longest",
            flush=True,
        )


async def measure(url: str, sizes: list[int]) -> None:
    """Fill a queue of each size, and print all figures."""
    async with AsyncExitStack() as stack:
        queues = []
        for database, size in enumerate(sizes):
            redis = await stack.enter_async_context(Redis.from_url(f"{url}/{database}"))
            queue = await stack.enter_async_context(AsyncWorkQueue.from_url(f"{url}/{database}", "bench"))
            queues.append(Sized(size, queue, redis))
            await queues[-1].fill()
        await take_turns(ROUNDS, [one.round for one in queues])
        for key in queues[0].costs:
            found = [median(one.costs[key]) for one in queues]
            ratios = ", ".join(f"{one:.1f} ({one / found[0]:.2f}x)" for one in found)
            print(f"{key[0]}, {key[1]} in a call: {ratios} µs of the server", flush=True)
        await queues[0].redis.config_set("slowlog-log-slower-than", 1000)
        await queues[0].redis.config_set("slowlog-max-len", 1000)
        for one in queues:
            print(f"{one.size:,}:", flush=True)
            await one.calls()


if __name__ == "__main__":
    with servers.running("redis7") as running:
        asyncio.run(measure(running.url, [1_000, 100_000, *map(int, sys.argv[1:])]))
