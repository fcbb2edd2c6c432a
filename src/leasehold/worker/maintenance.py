"""What a worker does for its queues besides working: cleans, ticks schedules, drops old dead letters."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.queue.queue import AsyncWorkQueue

#: After about so many light cleans comes a deep one.
LIGHT_PER_DEEP = 60
#: A schedule that somebody has just made is seen after so many seconds at most.
LONGEST_DOZE = 5.0

log = Log("leasehold.worker")


class Maintenance:
    """Looks after the queues of a worker. Any number of workers do it at once, without a leader.

    Args:
        clean_every: Seconds between two cleans of a queue; each wait is drawn around it.
        keep_dead: How long dead letters are kept, in seconds; None: until somebody drops them.
    """

    def __init__(self, *, clean_every: float, keep_dead: float | None) -> None:
        self._clean_every = clean_every
        self._keep_dead = keep_dead

    async def run(self, queues: Mapping[Any, AsyncWorkQueue]) -> None:
        """Clean and tick until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for queue in queues.values():
                tasks.create_task(self._clean(queue))
                tasks.create_task(self._tick(queue))

    async def clean_once(self, queue: AsyncWorkQueue, *, deep: bool) -> None:
        """Clean one queue, and drop the dead letters that have been kept long enough."""
        report = await (queue.deep_clean() if deep else queue.light_clean())
        if report.dropped or report.restored or report.adopted:
            log.info("cleaned %s: %s", queue.name, report)
        if self._keep_dead is not None:
            await queue.dead_letters.drop_older_than(self._keep_dead)

    async def _clean(self, queue: AsyncWorkQueue) -> None:
        while True:
            # Workers that were started together do not stay together.
            await asyncio.sleep(self._clean_every * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
            try:
                await self.clean_once(queue, deep=random.random() < 1 / LIGHT_PER_DEEP)  # noqa: S311 - no secret
            except LeaseholdError as error:
                log.warning("%s could not be cleaned: %s", queue.name, error)
            except Exception:
                log.exception("%s could not be cleaned", queue.name)

    async def _tick(self, queue: AsyncWorkQueue) -> None:
        while True:
            try:
                due_in = await queue.schedules.tick()
            except LeaseholdError as error:
                log.debug("the schedules of %s could not be ticked: %s", queue.name, error)
                due_in = LONGEST_DOZE
            except Exception:  # that one cannot be read must not keep the queues from being cleaned
                log.exception("the schedules of %s could not be ticked", queue.name)
                due_in = LONGEST_DOZE
            doze = LONGEST_DOZE * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
            await asyncio.sleep(max(0.001, min(due_in, doze)))
