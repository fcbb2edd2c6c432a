"""A configuration with one tier, for the tests of back ends, and the units that they start."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from leasequeue.autoscale.backends import open_backend
from leasequeue.autoscale.backends.processes import MARK
from leasequeue.autoscale.config import Config, DeploymentConfig, JobConfig, ProcessSettings, TierConfig
from leasequeue.autoscale.model import DeploymentPolicy, TierPolicy
from leasequeue.errors import BackendError
from tests.eventually import eventually
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from leasequeue.autoscale.backends import Backend
    from leasequeue.autoscale.backends.processes import ProcessBackend
    from leasequeue.autoscale.config import BackendSettings

PROGRAM = Path(__file__).with_name("unit_program.py")
#: A unit that never registers.
SLEEP = [sys.executable, "-S", "-c", "import signal; signal.pause()"]


def config_of(
    url: str,
    queue: str,
    settings: BackendSettings,
    *,
    tiers: int = 1,
    workers_per_unit: int = 1,
    spin_up: float = 30.0,
) -> Config:
    """Return a configuration with the deployment `work`, whose tiers are `t1`, `t2` and so on."""
    policies = [
        TierPolicy(name=f"t{one}", workers_per_unit=workers_per_unit, spin_up=spin_up)
        for one in range(1, tiers + 1)
    ]
    return Config(
        name=f"scale-{queue}",
        url=url,
        jobs={"job": JobConfig(queue=queue, url=url)},
        deployments={
            "work": DeploymentConfig(
                policy=DeploymentPolicy(name="work", jobs=("job",), tiers=tuple(policies)),
                tiers={one.name: TierConfig(policy=one, settings=settings) for one in policies},
            )
        },
    )


class ProcessBench:
    """A tier of processes: opens back ends for it, and kills what they have left."""

    def __init__(self, folder: Path, url: str, queue: str) -> None:
        self.folder, self.url, self.queue = folder, url, queue
        self.record = folder / "record"
        # They outlive a test that is killed, but not for long.
        options = ["--log-level", "error", "--exit-on-unhealthy", "60s"]
        self.command = ["leasequeue", "worker", f"{PROGRAM}:worker", *options]
        self.opened: list[Backend] = []

    @property
    def leasequeue(self) -> list[str]:
        """The command of a unit, for a program that starts it."""
        return [sys.executable, "-P", "-m", "leasequeue.cli", *self.command[1:]]

    @property
    def prefix(self) -> str:
        """How the names of units begin."""
        return f"scale-{self.queue}.work.t1-"

    def open(self, command: list[str] | None = None, *, spin_up: float = 30.0, **settings: Any) -> Backend:
        """Open another back end of the tier, as a loop that starts does."""
        environment = {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "QUEUE": self.queue,
            "RECORD": str(self.record),
        }
        found: dict[str, Any] = {
            "command": self.command if command is None else command,
            "env": environment,
            "on_exit": "leave",
        }
        given = ProcessSettings(**{**found, **settings})
        config = config_of(self.url, self.queue, given, spin_up=spin_up)
        self.opened.append(open_backend(config, "work", "t1"))
        return self.opened[-1]

    async def settled(self, backend: Backend, units: int) -> None:
        """Make passes until so many units are at work, and no others are left."""

        async def are_ready() -> bool:
            problem = await refusal(backend, units)
            await asyncio.sleep(0.05)  # leave the time to the workers
            return not problem and await backend.ready() == units and len(self.pids()) == units

        await until(f"{units} units are at work", are_ready)

    async def ended(self, backend: Backend) -> None:
        """Wait until no unit runs, and the back end knows it, which its threads tell it."""
        units = cast("ProcessBackend", backend)._units.values()
        await eventually(
            "they end", lambda: not self.pids() and not any(one.process.alive() for one in units)
        )

    def pids(self) -> list[int]:
        """Return the processes that lead units of this tier, as the system knows them; no zombies."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                marks = [
                    one.decode().rpartition("/")[2]
                    for one in environment_of(place).split(b"\0")
                    if one.startswith(f"{MARK}=".encode())
                ]
                if (
                    marks
                    and marks[0].startswith(self.prefix)
                    and os.getsid(int(place.name)) == int(place.name)
                ):
                    found.append(int(place.name))
            except OSError:
                continue
        return sorted(found)

    def recorded(self, event: str) -> list[str]:
        """Return the ids of the items whose runs have this event in the record."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [line.split()[1] for line in lines if line.startswith(event)]

    def release(self) -> None:
        """Let the runs continue that hold."""
        (self.folder / "release").touch()

    async def end(self) -> None:
        """Close the back ends and kill the units that are left."""
        for one in self.opened:
            await one.close()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
async def bench(tmp_path: Path, redis_url: str, name: str) -> AsyncIterator[ProcessBench]:
    """Give a tier of processes."""
    bench = ProcessBench(tmp_path, redis_url, name)
    try:
        yield bench
    finally:
        await bench.end()


def environment_of(place: Path) -> bytes:
    """Return the environment of a process. While a child's program is being loaded, it has none: wait."""
    while not (found := (place / "environ").read_bytes()):
        state, parent, *_ = (place / "stat").read_text().rpartition(")")[2].split()
        if state in "ZX" or int(parent) != os.getpid():
            break
    return found


async def refusal(backend: Backend, units: int) -> str:
    """Request units; return the problem that the back end raises, or nothing."""
    try:
        await backend.request(units)
    except BackendError as error:
        return error.problem
    return ""
