"""Back ends that count units by the workers that are registered on the queues of a deployment."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from leasequeue.alive import Fleet
from leasequeue.autoscale.queues import JobQueues
from leasequeue.errors import BackendError, LeasequeueError
from leasequeue.queue.shards.spreading import IN_PART

if TYPE_CHECKING:
    from leasequeue.alive import WorkerView
    from leasequeue.autoscale.config import CommandSettings, Config, HttpSettings, JobConfig


class Registered:
    """Looks which workers are registered on the queues of a deployment."""

    def __init__(self, config: Config, deployment: str) -> None:
        jobs = [config.jobs[name] for name in config.deployments[deployment].policy.jobs]
        self._jobs = {(one.url, one.queue, one.cluster): one for one in jobs}
        self._queues = JobQueues()

    async def workers(self, backend: str, target: str) -> list[tuple[Fleet, WorkerView]]:
        """Return the registrations on each of the queues that can be read, each with its fleet."""
        # One fleet for each queue: a server that is away must not hide what another one knows.
        answers = await asyncio.gather(*map(self._workers_of, self._jobs.values()), return_exceptions=True)
        errors = [one for one in answers if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, LeasequeueError):
                raise error
        if errors and len(errors) == len(answers):
            problem = f"the registered workers cannot be read: {errors[0]}"
            raise BackendError(backend, target, problem) from errors[0]
        return [row for rows in answers if not isinstance(rows, BaseException) for row in rows]

    async def _workers_of(self, job: JobConfig) -> list[tuple[Fleet, WorkerView]]:
        fleet = Fleet(await self._queues.get(job))
        IN_PART.set(True)  # in this task: each shard knows all workers of its queue
        return [(fleet, view) for view in await fleet.workers()]

    async def close(self) -> None:
        """Close the connections."""
        await self._queues.close()


class RegisteredUnits:
    """A back end that does not know its units: they are counted by what their workers run at once."""

    def __init__(
        self, config: Config, deployment: str, tier: str, settings: CommandSettings | HttpSettings
    ) -> None:
        self._target = f"{deployment}/{tier}"
        self._kind = settings.backend
        self._names = settings.workers
        self._per_unit = config.deployments[deployment].tiers[tier].policy.workers_per_unit
        self._alone = len(config.deployments[deployment].tiers) == 1
        self._registered = Registered(config, deployment)
        self._requested: int | None = None

    async def ready(self) -> int:
        """Return how many units' workers are registered on the deployment's queues.

        Only those whose names match the setting `workers` count, if it is set. Without it, and with several
        tiers: what was requested.
        """
        if self._names is None and not self._alone and self._requested is not None:
            return self._requested
        live = {
            view.id: view.concurrency
            for _, view in await self._registered.workers(self._kind, self._target)
            if not (view.dead or view.stopping or view.quiet)
            and (self._names is None or fnmatchcase(view.name, self._names))
        }
        return sum(live.values()) // self._per_unit

    async def requested(self) -> int:
        """Return what was requested last by this object; before, as `ready`."""
        return await self.ready() if self._requested is None else self._requested

    async def close(self) -> None:
        """Disconnect. The units keep running."""
        await self._registered.close()


class HttpBackend(RegisteredUnits):
    """Keeps the number of units, which the HTTP answer and the report give to those who ask."""

    async def request(self, units: int) -> None:
        """Keep a number of units."""
        self._requested = units
