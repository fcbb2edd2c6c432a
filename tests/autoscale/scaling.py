"""What the tests of the loop share: a back end in memory, and configurations."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item, Worker
from leasequeue.autoscale import (
    Config,
    DeploymentConfig,
    DeploymentPolicy,
    JobConfig,
    JobPolicy,
    TierConfig,
    TierPolicy,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@dataclass
class Units:
    """The units of one tier, which start at once. All copies of the autoscaler see the same ones."""

    count: int = 0
    #: Each request, in order.
    requests: list[int] = field(default_factory=list)
    #: What a call does first; it may raise, or wait.
    fault: Callable[[str], object] = lambda _: None
    calls: int = 0

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
        self.calls += 1
        await asyncio.sleep(0)
        if asyncio.iscoroutine(made := self.fault(call)):
            await made


class Platform:
    """Opens back ends in memory, by deployment and tier."""

    def __init__(self) -> None:
        self.tiers: dict[tuple[str, str], Units] = {}

    def __call__(self, config: Config, deployment: str, tier: str) -> Units:
        assert tier in config.deployments[deployment].tiers
        return self[deployment, tier]

    def __getitem__(self, key: tuple[str, str]) -> Units:
        return self.tiers.setdefault(key, Units())


async def add_items(url: str, queue: str, count: int) -> None:
    """Add items to a queue that are not there yet."""
    async with AsyncWorkQueue.from_url(url, queue) as opened:
        await opened.add_items(Item(b"x", id=f"{queue}-{n}") for n in range(count))


def make_config(
    name: str,
    url: str,
    *jobs: str,
    every: float = 10.0,
    job_url: str = "",
    slow_down: float = 0.0,
    clean_every: float | None = 30.0,
) -> Config:
    """Return a configuration with one deployment of one tier `main` for each job, by default `work`."""
    names = jobs or ("work",)
    tier = TierPolicy(name="main", max_units=100, spin_up=30.0, slow_down=slow_down)
    return Config(
        name=f"{name}-autoscaler",
        url=url,
        every=every,
        clean_every=clean_every,
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
                tiers={"main": TierConfig(policy=tier)},
            )
            for job in names
        },
    )


@asynccontextmanager
async def register(url: str, queue: str, name: str, concurrency: int) -> AsyncIterator[Worker]:
    """Run a worker whose queue has no items."""
    worker = Worker(name=name, concurrency=concurrency)

    @worker.handler(AsyncWorkQueue.from_url(url, queue))
    async def handle(_: bytes) -> None:
        raise AssertionError

    running = asyncio.create_task(worker.run())
    try:
        await worker.started()
        yield worker
    finally:
        worker.stop()
        await running
