"""What the tests of the loop share: a back end in memory, and configurations."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold import BackendError
from leasehold.autoscale import (
    Config,
    DeploymentConfig,
    DeploymentPolicy,
    JobConfig,
    JobPolicy,
    TierConfig,
    TierPolicy,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Units:
    """The units of one tier, which start at once. All copies of the autoscaler see the same ones."""

    count: int = 0
    #: Each request, in order.
    requests: list[int] = field(default_factory=list)
    #: What a call does first; it may raise, or wait.
    fault: Callable[[str], object] = lambda _: None

    async def ready(self) -> int:
        await self._act("ready")
        return self.count

    async def requested(self) -> int:
        await self._act("requested")
        return self.count

    async def request(self, units: int) -> None:
        await self._act("request")
        self.requests.append(units)
        self.count = units

    async def close(self) -> None:
        pass

    async def _act(self, call: str) -> None:
        await asyncio.sleep(0)
        if asyncio.iscoroutine(made := self.fault(call)):
            await made


class Platform:
    """Opens back ends in memory, by deployment and tier."""

    def __init__(self) -> None:
        self.tiers: dict[tuple[str, str], Units] = {}

    def __call__(self, config: Config, deployment: str, tier: str) -> Units:
        if config.deployments[deployment].tiers[tier].backend != "memory":
            raise BackendError("memory", f"{deployment}/{tier}", "is not opened")
        return self[deployment, tier]

    def __getitem__(self, key: tuple[str, str]) -> Units:
        return self.tiers.setdefault(key, Units())


def make_config(
    name: str, url: str, *jobs: str, every: float = 10.0, job_url: str = "", **more: object
) -> Config:
    """Return a configuration with one deployment for each job, or `work`, of one tier `main`."""
    names = jobs or ("work",)
    tier = TierPolicy(name="main", max_units=100, spin_up=30.0, slow_down=0.0)
    return Config(
        name=f"{name}-autoscaler",
        url=url,
        every=every,
        jobs={
            job: JobConfig(
                queue=f"{name}-{job}",
                url=job_url or url,
                policy=JobPolicy(age_target=60.0, service_time=30.0),
            )
            for job in names
        },
        deployments={
            job: DeploymentConfig(
                policy=DeploymentPolicy(name=job, jobs=(job,), tiers=(tier,)),
                tiers={"main": TierConfig(policy=tier, backend="memory")},
            )
            for job in names
        },
        **more,  # type: ignore[arg-type]  # the fields of the dataclass
    )
