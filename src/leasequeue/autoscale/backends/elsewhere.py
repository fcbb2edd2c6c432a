"""Units that serve none of their deployment's queues: where they are registered instead."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.units import leader_of
from leasequeue.describing import describe
from leasequeue.errors import LeasequeueError
from leasequeue.fleet import Fleet
from leasequeue.log import Log
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.scripting.discovery import find_queues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.autoscale.backends.units import Unit
    from leasequeue.autoscale.config import Config

#: A unit that is not at work so long after its start is looked for on other queues (s).
LOOK_AFTER = 10.0
#: How long to wait before all queues are looked at again (s), and how long one look may take (s).
LOOK_EVERY, LOOK_WITHIN = 30.0, 4.0
#: At most so many keys are scanned for queues on each server, and so many queues are looked at.
MAX_KEYS, MAX_QUEUES = 100_000, 200

log = Log("leasequeue.autoscale")


class Elsewhere:
    """Looks on which queues those units of a tier are registered that are on none of its deployment's.

    Args:
        config: The configuration.
        deployment: The name of the deployment.
        tier: The name of the tier.
    """

    def __init__(self, config: Config, deployment: str, tier: str) -> None:
        jobs = [config.jobs[name] for name in config.deployments[deployment].policy.jobs]
        self._wanted = ", ".join(sorted({one.queue for one in jobs}))
        #: Nodes of clusters are left out: each knows of its own queues only.
        self._urls = sorted({one.url for one in jobs if not one.cluster})
        self._late = 2 * config.deployments[deployment].tiers[tier].policy.spin_up
        self._looked_at: float | None = None
        #: The queues of each unit, by its process.
        self._queues: dict[int, list[str]] = {}

    async def problems(self, units: Iterable[Unit]) -> list[str]:
        """Return what to report of units that were never seen at work, at most one problem of each kind.

        It stays the same as long as the units do, so that it is logged once.
        """
        now = time.monotonic()
        ages = {unit: now - unit.began for unit in units}
        due = [unit for unit, age in ages.items() if age >= LOOK_AFTER]
        if due and (self._looked_at is None or now - self._looked_at >= LOOK_EVERY):
            self._looked_at = now
            await self._look(due)
        wrong = [unit for unit in due if unit.pid in self._queues]
        late = [unit for unit, age in ages.items() if age >= self._late and unit not in wrong]
        found = []
        if wrong:
            queues = ", ".join(self._queues[wrong[0].pid])
            found.append(
                f"{_named(wrong)} at work for none of the deployment's queues: "
                f"it serves {queues}, and should serve {self._wanted}"
            )
        if late:
            found.append(
                f"{_named(late)} not registered on any of the deployment's queues "
                f"after {self._late:g} s: {self._wanted}"
            )
        return found

    async def _look(self, units: list[Unit]) -> None:
        """Note on which queues of the deployment's servers units are registered."""
        found: dict[int, list[str]] = {}
        try:
            async with asyncio.timeout(LOOK_WITHIN):
                for url in self._urls:
                    await _find(url, units, found)
        except (LeasequeueError, TimeoutError) as error:
            log.info("the queues that units serve cannot be looked for: %s", describe(error))
        self._queues = found


async def _find(url: str, units: list[Unit], found: dict[int, list[str]]) -> None:
    """Add the queues of units on a server to `found`, by their processes."""
    names = (await find_queues(url, max_keys=MAX_KEYS, max_queues=MAX_QUEUES)).names
    if not names:
        return
    queues = [AsyncWorkQueue.from_url(url, name) for name in names]
    try:
        workers = await Fleet(*queues).workers()
    finally:
        await asyncio.gather(*(one.close() for one in queues))
    for view in workers:
        for unit in units:
            if view.name.startswith(unit.name) and leader_of(view.pid, unit.name) == unit.pid:
                found.setdefault(unit.pid, []).extend(view.queues)


def _named(units: list[Unit]) -> str:
    """Name the first of some units, and say how many more there are."""
    more = f" and {len(units) - 1} more are" if len(units) > 1 else " is"
    return f"the unit {units[0].name}{more}"
