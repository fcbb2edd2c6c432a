"""The workers that are registered on the queues of a deployment, by server and queue."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from leasequeue.alive import Fleet
from leasequeue.errors import BackendError, LeasequeueError
from leasequeue.queue.queue import AsyncWorkQueue

if TYPE_CHECKING:
    from leasequeue.alive import WorkerView
    from leasequeue.autoscale.config import Config


class Registered:
    """Looks which workers are registered on the queues of a deployment."""

    def __init__(self, config: Config, deployment: str) -> None:
        jobs = [config.jobs[name] for name in config.deployments[deployment].policy.jobs]
        self._queues = [
            AsyncWorkQueue.from_url(url, queue, cluster=cluster)
            for url, queue, cluster in sorted({(one.url, one.queue, one.cluster) for one in jobs})
        ]
        # One for each queue: a server that is away must not hide what another one knows.
        self._fleets = [Fleet(queue) for queue in self._queues]

    async def workers(self, backend: str, target: str) -> list[tuple[Fleet, WorkerView]]:
        """Return the registrations on each of the queues that can be read, each with its fleet."""
        answers = await asyncio.gather(*(one.workers() for one in self._fleets), return_exceptions=True)
        errors = [one for one in answers if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, LeasequeueError):
                raise error
        if errors and len(errors) == len(answers):
            raise BackendError(
                backend, target, f"the registered workers cannot be read: {errors[0]}"
            ) from errors[0]
        return [
            (fleet, view)
            for fleet, views in zip(self._fleets, answers, strict=True)
            if not isinstance(views, BaseException)
            for view in views
        ]

    async def concurrency(self, backend: str, target: str, names: str | None) -> int:
        """Return how many items the live workers run at once."""
        found = await self.workers(backend, target)
        live = {
            view.id: view.concurrency
            for _, view in found
            if not (view.dead or view.stopping or view.quiet)
            and (names is None or fnmatchcase(view.name, names))
        }
        return sum(live.values())

    async def close(self) -> None:
        """Close the connections."""
        for queue in self._queues:
            await queue.close()
