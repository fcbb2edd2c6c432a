"""The back end that calls nothing: others fetch the number from the autoscaler's HTTP answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.autoscale.backends.registered import Registered

if TYPE_CHECKING:
    from leasequeue.autoscale.config import Config, HttpSettings


class HttpBackend:
    """Keeps the number of units, which the HTTP answer and the report give to those who ask."""

    def __init__(self, config: Config, deployment: str, tier: str, settings: HttpSettings) -> None:
        self._target = f"{deployment}/{tier}"
        found = config.deployments[deployment].tiers[tier]
        self._workers = settings.workers
        self._per_unit = found.policy.workers_per_unit
        self._alone = len(config.deployments[deployment].tiers) == 1
        self._registered = Registered(config, deployment)
        self._requested: int | None = None

    async def ready(self) -> int:
        """Return how many units' workers are registered on the deployment's queues.

        Only those whose names match the setting `workers` count, if it is set. Without it, and with several
        tiers: what was requested.
        """
        if self._workers is None and not self._alone and self._requested is not None:
            return self._requested
        return await self._registered.concurrency("http", self._target, self._workers) // self._per_unit

    async def requested(self) -> int:
        """Return what was requested last by this object; before, as `ready`."""
        return await self.ready() if self._requested is None else self._requested

    async def request(self, units: int) -> None:
        """Keep a number of units."""
        self._requested = units

    async def close(self) -> None:
        """Disconnect. The units go on."""
        await self._registered.close()
