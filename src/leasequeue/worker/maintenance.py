"""Maintain the queues of a worker: clean them, tick their schedules, settle flow runs, drop dead letters."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from leasequeue.durations import Backoff
from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.plans.stages import settle
from leasequeue.queue.queue import engine_of, engines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.queue.schedules import Declaration

LIGHT_PER_DEEP = 60
#: After a clean has failed, so many turns are left to other workers, which may be able to do it.
TURNS_LEFT_OUT = 2
#: A new schedule is noticed after so many seconds at most, if that needs no shorter pauses than those below.
LONGEST_SLEEP = 5.0
#: The pause between two queues that are asked whether they have schedules, and in the first round (s).
SHORTEST_PAUSE, FIRST_PAUSE = 0.02, 0.002

#: How many of a queue's workers look for new schedules in each round, on average: at a thousand, all would
#: keep the server busy with that alone. That none does is rare, and the next round follows.
LOOKING = 8

#: How many steps, of 100 items each, one search of a foreign queue takes for stages that are done: no client
#: of another library notes these.
FOREIGN_STEPS = 10

#: How often it is seen how long items wait, by one worker, if a queue keeps history, and how often a worker
#: looks whether one does (s).
SAMPLE_EVERY, ASK_EVERY = 10.0, 60.0

#: How often a worker declares its schedules again, and removes those that no worker declares (s).
DECLARE_EVERY = 60.0

log = Log("leasequeue.worker")


class Maintenance:
    """Maintains queues. Any number of workers do this at once; one of them cleans a queue: see `clean_turn`.

    The arguments are those of `Worker`; each pause between two cleans is random. On average, one clean out of
    `light_per_deep` is a deep one; infinite: none is. Only clients of other libraries serve the `foreign`
    queues. `declarations` returns the schedules that this worker declares on a queue, `workers` how many
    workers it has.
    """

    def __init__(
        self,
        *,
        clean_every: float,
        keep_dead: float | None,
        declarations: Callable[[AsyncWorkQueue], Sequence[Declaration]] = lambda _: (),
        light_per_deep: float = LIGHT_PER_DEEP,
        foreign: Collection[AsyncWorkQueue] = (),
        workers: Callable[[AsyncWorkQueue], int] = lambda _: 1,
    ) -> None:
        self._clean_every = clean_every
        self._deep_share = 1 / light_per_deep
        self._keep_dead = keep_dead
        self._declarations = declarations
        #: When to declare the schedules of a queue next, and when to remove others, by `time.monotonic()`.
        self._declare_at: dict[AsyncWorkQueue, float] = {}
        self._expire_at: dict[AsyncWorkQueue, float] = {}
        #: When to sample for the history of a queue next, by `time.monotonic()`.
        self._sample_at: dict[AsyncWorkQueue, float] = {}
        #: The queues to maintain, and the foreign ones; both may change.
        self._served: Collection[AsyncWorkQueue] = ()
        self._foreign = foreign
        self._workers = workers
        #: Those that could not be cleaned: how many turns are left to others.
        self._left_out: Counter[AsyncWorkQueue] = Counter()
        #: Those that are being cleaned, and those whose schedules are being ticked.
        self._cleaning: set[AsyncWorkQueue] = set()
        self._ticking: set[AsyncWorkQueue] = set()
        #: Those whose stages are being settled, and where each continues to look for lost ones.
        self._settling: set[AsyncWorkQueue] = set()
        self._sampling: set[AsyncWorkQueue] = set()
        self._cursors: dict[AsyncWorkQueue, bytes] = {}

    async def run(self, queues: Collection[AsyncWorkQueue]) -> None:
        """Clean queues and tick schedules until cancelled. The queues may change."""
        self._served = queues
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._clean_in_turn(tasks))
            tasks.create_task(self._tick_in_turn(tasks))

    async def clean_once(self, queue: AsyncWorkQueue, *, deep: bool) -> None:
        """Clean one queue, and drop its dead letters that are older than `keep_dead`."""
        report = await (queue.deep_clean() if deep else queue.light_clean())
        if report.dropped or report.restored or report.adopted or report.findings:
            log.info("cleaned %s: %s", queue.name, report)
        await self._drop_old(queue)

    async def _drop_old(self, queue: AsyncWorkQueue) -> None:
        if self._keep_dead is not None:
            await queue.dead_letters.drop_older_than(self._keep_dead)

    @property
    def _queues(self) -> list[AsyncWorkQueue]:
        return [*self._served, *self._foreign]

    async def _clean_in_turn(self, tasks: asyncio.TaskGroup) -> None:
        """Clean each queue once in `clean_every` seconds, on average, unless another worker does."""
        while True:
            queues = self._queues
            random.shuffle(queues)
            for queue in queues or (None,):
                # Random, so that workers that were started together do not clean together.
                pause = self._clean_every * random.uniform(0.5, 1.5)  # noqa: S311 - no secret
                await asyncio.sleep(pause / max(1, len(queues)))
                # In a task, since the server of a queue may be away.
                if queue is not None and queue in self._queues:
                    self._start(self._cleaning, queue, self._clean, tasks)

    async def _clean(self, queue: AsyncWorkQueue) -> None:
        if self._left_out[queue] > 0:
            self._left_out[queue] -= 1
            return
        deep = random.random() < self._deep_share  # noqa: S311 - no secret
        every = self._clean_every / self._deep_share if deep else self._clean_every
        try:
            every_ms = max(1, round(every * 1000))
            # Of all sessions one cleans: the one whose turn it is, until it has not for twice as long.
            if await engine_of(queue).run("clean_turn", deep=int(deep), every_ms=every_ms):
                await self.clean_once(queue, deep=deep)
            else:
                await self._drop_old(queue)  # which another one may keep for longer
        except LeasequeueError as error:
            log.warning("%s could not be cleaned: %s", queue.name, error)
        except Exception:
            log.exception("%s could not be cleaned", queue.name)
        else:
            return
        self._left_out[queue] = TURNS_LEFT_OUT

    async def _tick_in_turn(self, tasks: asyncio.TaskGroup) -> None:
        """Look for new schedules, and for stages to settle, in one queue after the other."""
        pause = FIRST_PAUSE
        known: set[AsyncWorkQueue] = set()
        while True:
            queues = self._queues
            for queue in queues or (None,):
                if queue is not None:
                    # The first time in any case: its own schedules may have to be declared.
                    if queue not in known or random.random() * self._workers(queue) < LOOKING:  # noqa: S311 - no secret
                        self._start(self._ticking, queue, self._tick, tasks)
                    self._start(self._settling, queue, self._settle, tasks)
                    if time.monotonic() >= self._sample_at.get(queue, 0.0):
                        self._start(self._sampling, queue, self._sample, tasks)
                await asyncio.sleep(pause * random.uniform(0.8, 1.0))  # noqa: S311 - no secret
            pause, known = max(LONGEST_SLEEP / max(1, len(queues)), SHORTEST_PAUSE), {*queues}

    async def _tick(self, queue: AsyncWorkQueue) -> None:
        """Declare and tick the schedules of a queue, as long as it has any."""
        due_in, backoff = 0.0, Backoff()
        while due_in < math.inf and queue in self._queues:
            try:
                await self._declare(queue)  # first, so that ticks which were missed are not forgotten
                due_in = await queue.schedules.tick()
                backoff.reset()
                if due_in < math.inf:
                    await self._expire(queue)
            except LeasequeueError as error:
                log.debug("the schedules of %s could not be ticked: %s", queue.name, error)
                due_in = backoff.next() if error.transient else LONGEST_SLEEP
            except Exception:  # a schedule that cannot be read must not stop the cleaning
                log.exception("the schedules of %s could not be ticked", queue.name)
                due_in = LONGEST_SLEEP
            if due_in < math.inf:
                longest = LONGEST_SLEEP * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
                await asyncio.sleep(max(0.001, min(due_in, longest)))

    async def _settle(self, queue: AsyncWorkQueue) -> None:
        """Record the ends of stages whose items were cancelled, deleted, or ended in another such way."""
        engines_of(queue).feeds.limit(())  # a worker has declared more before
        try:
            for _ in range(FOREIGN_STEPS if queue in self._foreign else 1):
                cursor = self._cursors[queue] = await settle(
                    engine_of(queue), cursor=self._cursors.get(queue, b"0")
                )
                if cursor == b"0":
                    break
        except LeasequeueError as error:
            log.debug("the stages of %s could not be settled: %s", queue.name, error)
        except Exception:
            log.exception("the stages of %s could not be settled", queue.name)

    async def _sample(self, queue: AsyncWorkQueue) -> None:
        """See how long items wait, for the history of a queue that keeps it."""
        self._sample_at[queue] = time.monotonic() + ASK_EVERY
        try:
            if await queue.history._sample(SAMPLE_EVERY):  # noqa: SLF001 - for the worker alone
                self._sample_at[queue] = time.monotonic() + SAMPLE_EVERY
        except LeasequeueError as error:
            log.debug("%s could not be sampled: %s", queue.name, error)
        except Exception:
            log.exception("%s could not be sampled", queue.name)

    async def _declare(self, queue: AsyncWorkQueue) -> None:
        """Declare our schedules of a queue once in a minute."""
        now = time.monotonic()
        if now >= self._declare_at.get(queue, now):
            declarations = self._declarations(queue)
            for declaration in declarations:
                if await queue.schedules._declare(declaration):  # noqa: SLF001 - for the worker alone
                    log.info("declared the schedule %r of %s", declaration.name, queue.name)
            if declarations:  # a queue that is only maintained may be served later
                self._declare_at[queue] = now + DECLARE_EVERY

    async def _expire(self, queue: AsyncWorkQueue) -> None:
        """Remove the schedules of a queue that no worker declares, once in a minute.

        Not at once: after an outage of all workers, others may start with this one, and declare theirs.
        """
        now = time.monotonic()
        if now >= self._expire_at.setdefault(queue, now + DECLARE_EVERY):
            for name in await queue.schedules._expire_declared():  # noqa: SLF001 - as above
                log.warning(
                    "removed the schedule %r of %s: no worker has declared it for an hour", name, queue.name
                )
            self._expire_at[queue] = now + DECLARE_EVERY

    def _start(
        self,
        busy: set[AsyncWorkQueue],
        queue: AsyncWorkQueue,
        work: Callable[[AsyncWorkQueue], Coroutine[Any, Any, None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Do some work on a queue in a task, unless one does already."""
        if queue not in busy:
            busy.add(queue)
            tasks.create_task(work(queue)).add_done_callback(lambda _: busy.discard(queue))
