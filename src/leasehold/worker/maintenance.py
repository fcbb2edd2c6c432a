"""Maintain the queues of a worker: clean them, tick their schedules, drop old dead letters."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.log import Log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leasehold.queue.queue import AsyncWorkQueue

#: On average, one clean out of so many is a deep one.
LIGHT_PER_DEEP = 60
#: A new schedule is noticed after so many seconds at most.
LONGEST_SLEEP = 5.0

log = Log("leasehold.worker")


class Maintenance:
    """Maintains queues. Any number of workers do this at once, without a leader.

    The arguments are those of `Worker`; each pause between two cleans is random.
    """

    def __init__(self, *, clean_every: float, keep_dead: float | None) -> None:
        self._clean_every = clean_every
        self._keep_dead = keep_dead

    async def run(self, queues: Mapping[Any, AsyncWorkQueue]) -> None:
        """Clean queues and tick schedules until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for queue in queues.values():
                tasks.create_task(self._clean(queue))
                tasks.create_task(self._tick(queue))

    async def clean_once(self, queue: AsyncWorkQueue, *, deep: bool) -> None:
        """Clean one queue, and drop its dead letters that are older than `keep_dead`."""
        report = await (queue.deep_clean() if deep else queue.light_clean())
        if report.dropped or report.restored or report.adopted:
            log.info("cleaned %s: %s", queue.name, report)
        if self._keep_dead is not None:
            await queue.dead_letters.drop_older_than(self._keep_dead)

    async def _clean(self, queue: AsyncWorkQueue) -> None:
        while True:
            # Random, so that workers that were started together do not clean together.
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
                due_in = LONGEST_SLEEP
            except Exception:  # a schedule that cannot be read must not stop the cleaning
                log.exception("the schedules of %s could not be ticked", queue.name)
                due_in = LONGEST_SLEEP
            longest = LONGEST_SLEEP * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
            await asyncio.sleep(max(0.001, min(due_in, longest)))
