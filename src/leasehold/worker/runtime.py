"""One runtime of a worker: everything that lives from its start to its stop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio

from leasehold.log import Log
from leasehold.queue.internals import stop_listening
from leasehold.worker.acknowledger import Acknowledger
from leasehold.worker.background import BackgroundThread
from leasehold.worker.executor import Executor
from leasehold.worker.fetcher import Fetcher
from leasehold.worker.health import Monitor
from leasehold.worker.lease_renewer import LeaseRenewer
from leasehold.worker.maintenance import Maintenance
from leasehold.worker.pools import Threads

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leasehold.queue.lease import Lease
    from leasehold.worker.fetcher import Order
    from leasehold.worker.handler import Handler
    from leasehold.worker.run import Run

#: When so many outcomes wait for the server, no more work is taken.
MAX_UNSETTLED = 5000
#: For how long after the grace time outcomes are sent again while the server is away, and at least (s).
SETTLE_SECONDS = 5.0
SHORTEST_SETTLE = 1.0
#: How often `drained` looks at the server (s).
DRAIN_LOOK = 0.02

log = Log("leasehold.worker")


class WorkerRuntime:
    """The parts of a running worker, put together.

    Args:
        handlers: What it runs; at least one.
        concurrency: How many runs at once.
        order: How it chooses among queues.
        clean_every: Seconds between two cleans; None: it does not clean, tick or drop.
        keep_dead: How long dead letters are kept, in seconds, or None.
    """

    def __init__(
        self,
        handlers: Sequence[Handler],
        *,
        concurrency: int,
        order: Order,
        clean_every: float | None,
        keep_dead: float | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._concurrency = concurrency
        self.hurry = asyncio.Event()
        self.renewer = LeaseRenewer(lost=self._lost, on_released=self._on_released)
        self.executor = Executor(
            concurrency, self.renewer, ended=self._ended, freed=self._settled, torn_down=self._torn_down
        )
        self.acknowledgers = {
            handler: Acknowledger(handler, self.renewer, self._settled) for handler in handlers
        }
        self.fetcher = Fetcher(handlers, order, self.renewer, self.executor, self._may_go_on)
        self.monitor = Monitor(self.executor, self.renewer, self.fetcher)
        tasks = [self.renewer.keep, self.monitor.watch, self.monitor.rescue]
        if clean_every is not None:
            tasks.append(Maintenance(clean_every=clean_every, keep_dead=keep_dead).run)
        self.background = BackgroundThread(handlers, tasks)
        self._threads = Threads(concurrency)
        self._tasks: list[asyncio.Task[None]] = []
        #: How many items the server could not be told of, at the end.
        self._untold = 0

    async def start(self, resources: Mapping[str, Any], middleware: Sequence[Any]) -> asyncio.Task[None]:
        """Begin to work; returns the task that takes work, which ends only with an error.

        Raises:
            InvalidArgument: If a handler asks for something that the resources do not hold.
        """
        self.prepare(resources, middleware)
        await self.background.start()
        taking = asyncio.create_task(self.fetcher.run(), name="leasehold fetch")
        self._tasks = [taking, asyncio.create_task(self.monitor.beat(), name="leasehold beat")]
        return taking

    def prepare(self, resources: Mapping[str, Any], middleware: Sequence[Any]) -> None:
        """Give the handlers what they ask for.

        Raises:
            InvalidArgument: If a handler asks for something that the resources do not hold.
        """
        processes = anyio.CapacityLimiter(self._concurrency)
        for handler in self._handlers:
            handler.prepare(resources, middleware, threads=self._threads, processes=processes)

    async def end(self, *, grace: float) -> None:
        """Stop: take no more, give back what has not begun, let runs end or cut them off, settle, leave.

        Renewal goes on until the last outcome is settled, so no lease ends meanwhile. It takes a few seconds
        more than the grace time at most.
        """
        cut_at = self._loop.time() + grace
        taking, *others = self._tasks
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        waiting = self.renewer.all_waiting()
        leaving = [asyncio.create_task(stop_listening(handler.queue)) for handler in self._handlers]
        # What is on its way here comes behind what waits here: it goes back to the front before it.
        await asyncio.wait(leaving, timeout=SHORTEST_SETTLE)
        self._release(waiting)
        await self.executor.finish(within=grace, hurry=self.hurry)
        await self._settle_rest(until=max(cut_at + SETTLE_SECONDS, self._loop.time() + SHORTEST_SETTLE))
        await self._release_rest()
        await asyncio.wait(leaving, timeout=SHORTEST_SETTLE)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self.background.stop()
        self._threads.close()

    @property
    def loose_ends(self) -> int:
        """How many items will run again, as runs were cut off, or the server was not told of their end."""
        return self.executor.cut_off + self._untold

    def tally(self) -> str:
        """What has been done, in words."""
        acknowledgers = self.acknowledgers.values()
        counts = {
            "completed": sum(one.completed for one in acknowledgers),
            "failed": sum(one.failed for one in acknowledgers),
            "given back": sum(one.released for one in acknowledgers),
            "cut off": self.executor.cut_off,
            "not settled": self._untold,
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "nothing was done"

    def __str__(self) -> str:
        names = ", ".join(handler.queue.name for handler in self._handlers)
        return f"{names}, {self._concurrency} runs at once"

    async def drained(self) -> None:
        """Wait until nothing that can be leased is left in any queue, and nothing is here."""
        while True:
            took_at = self.fetcher.took_at
            if not self.renewer.held and not await self._take_more():
                # What came for the fetcher while we looked has been taken in when the loop has gone round.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                if not self.renewer.held and self.fetcher.took_at == took_at:
                    return
            await asyncio.sleep(DRAIN_LOOK)

    async def _take_more(self) -> bool:
        """Take what one of the queues has, and say whether there was anything.

        Counting would not do: it does not bring back what is due, and what is on its way to the fetcher is
        in no queue any more.
        """
        for handler in self._handlers:
            leases = await handler.queue.lease_many(handler.batch or 1, handler.lease_time, block=False)
            if leases:
                self.fetcher.take_in(handler, leases)
                return True
        return False

    # ------------------------------------------------------------------ between the parts

    def _ended(self, run: Run) -> None:
        self.acknowledgers[run.handler].add(run)
        self.fetcher.look()

    def _settled(self) -> None:
        self.fetcher.look()

    def _torn_down(self) -> bool:
        """Whether all tasks are cancelled, and not that of a run alone, which may do it itself."""
        return any(task.cancelling() for task in self._tasks[1:])

    def _may_go_on(self) -> bool:
        return sum(acknowledger.unsettled for acknowledger in self.acknowledgers.values()) < MAX_UNSETTLED

    def _lost(self, run: Run, lease: Lease) -> None:
        log.warning("the lease of item %s (%s) was lost", lease.id, run.handler.queue.name, extra=run.facts)
        self._loop.call_soon_threadsafe(run.lose, lease)

    def _on_released(self) -> None:
        self._loop.call_soon_threadsafe(self.fetcher.slow_down)

    def _release(self, waiting: Sequence[Run]) -> None:
        for handler, acknowledger in self.acknowledgers.items():
            acknowledger.release([run for run in waiting if run.handler is handler])

    async def _release_rest(self) -> None:
        """Give back what nobody has settled: of a queue that was closed, or in other hands at that moment."""
        if self.renewer.held and not self._untold:
            giving = asyncio.wrap_future(self.background.call(self.renewer.release_all))
            await asyncio.wait([giving], timeout=SHORTEST_SETTLE)

    async def _drain_acknowledgers(self) -> None:
        await asyncio.gather(*(acknowledger.drained() for acknowledger in self.acknowledgers.values()))

    async def _settle_rest(self, *, until: float) -> None:
        """Settle what is left, and try again while the server is away: until then, or until told to hurry."""
        ends = max(
            (lease.remaining() for run in list(self.renewer.held) for lease in run.leases), default=0.0
        )
        until = min(until, self._loop.time() + max(SHORTEST_SETTLE, ends))
        draining = asyncio.create_task(self._drain_acknowledgers())
        hurried = asyncio.create_task(self.hurry.wait())
        left = until - self._loop.time()
        await asyncio.wait([draining, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done() and hurried.done():
            await asyncio.wait([draining], timeout=min(SHORTEST_SETTLE, until - self._loop.time()))
        hurried.cancel()
        if draining.done():
            draining.result()
            return
        draining.cancel()
        held = [lease.remaining() for run in list(self.renewer.held) for lease in run.leases]
        self._untold = sum(run.unsettled for run in list(self.renewer.held))
        log.error(
            "the server is away: %d items were neither settled nor given back. They come back by themselves "
            "when their leases end, in %.0f s at most",
            self._untold,
            max([0.0, *held]),
        )
        for acknowledger in self.acknowledgers.values():
            acknowledger.give_up()
