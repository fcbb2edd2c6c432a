"""What starts and stops units: a small protocol, and its implementations, of which a tier opens one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from leasequeue.autoscale.config import CommandSettings, HttpSettings, KubernetesSettings, ProcessSettings

if TYPE_CHECKING:
    from leasequeue.autoscale.config import Config


class Backend(Protocol):
    """Starts and stops the units of one tier: processes, pods or machines.

    One object is for one tier, and is called by one event loop. The loop limits the time of each call, and
    cancels a call that takes longer: it must then be safe to call again. Several copies of the autoscaler
    may have an object each for one tier; only the leader requests, and a late request of an earlier leader
    is corrected by the next pass of the present one.
    """

    async def ready(self) -> int:
        """Return how many units work now.

        Raises:
            BackendError: If that cannot be known now.
        """
        ...

    async def requested(self) -> int:
        """Return how many units were asked for last, by any client: what the platform works towards.

        Raises:
            BackendError: If that cannot be known now.
        """
        ...

    async def request(self, units: int) -> None:
        """Ask for a number of units in all. It returns when that is noted, not when they work.

        Asking again for the same number changes nothing.

        Args:
            units: How many there shall be, 0 or more.

        Raises:
            BackendError: If that could not be noted.
        """
        ...

    async def close(self) -> None:
        """Disconnect. The units keep running. Closing twice is fine."""
        ...


def open_backend(config: Config, deployment: str, tier: str) -> Backend:
    """Open the back end of one tier. It connects on its first call."""
    # Each branch imports only what it needs.
    match config.deployments[deployment].tiers[tier].settings:
        case ProcessSettings() as settings:
            from leasequeue.autoscale.backends.processes import ProcessBackend

            return ProcessBackend(config, deployment, tier, settings)
        case CommandSettings() as settings:
            from leasequeue.autoscale.backends.command import CommandBackend

            return CommandBackend(config, deployment, tier, settings)
        case HttpSettings() as settings:
            from leasequeue.autoscale.backends.registered import HttpBackend

            return HttpBackend(config, deployment, tier, settings)
        case KubernetesSettings() as settings:
            from leasequeue.autoscale.backends.kubernetes import KubernetesBackend

            return KubernetesBackend(f"{deployment}/{tier}", settings)


def leaving_units(config: Config) -> Config:
    """Return the configuration with which closing leaves all units, unless it says that it stops them.

    For a program that makes one pass: what it has asked for is to last, also if it runs in a terminal.
    """
    deployments = {}
    for name, deployment in config.deployments.items():
        tiers = {}
        for tier, one in deployment.tiers.items():
            tiers[tier] = one
            if isinstance(one.settings, ProcessSettings) and one.settings.on_exit is None:
                tiers[tier] = replace(one, settings=structs.replace(one.settings, on_exit="leave"))
        deployments[name] = replace(deployment, tiers=tiers)
    return replace(config, deployments=deployments)
