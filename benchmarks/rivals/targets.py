"""The libraries: the program of each, and how its keys show that no job is left."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import CLIENT_CORE, Program, program

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from redis.asyncio import Redis

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Where `make bench-rivals` installs the libraries.
PLACES = ROOT / "build" / "rivals"


@dataclass(frozen=True)
class Library:
    """One library.

    Attributes:
        name: Its name, also that of its program, its requirements and its environment.
        left: Returns how many jobs the server still holds, running ones included.
        title: Its label in the results; by default the name.
        plain: Whether to run it without uvloop.
        here: Whether to run it with the Python of this process instead of its environment.
    """

    name: str
    left: Callable[[Redis], Awaitable[int]]
    title: str = ""
    plain: bool = False
    here: bool = False

    @property
    def label(self) -> str:
        """Its name in the results."""
        return self.title or self.name

    @property
    def ours(self) -> bool:
        """Whether it is Leasehold."""
        return self.name == "leasehold"

    @property
    def on_node(self) -> bool:
        """Whether it runs on Node."""
        return self.name == "bullmq"

    def program(
        self, part: str, task: dict[str, Any], cores: list[int] = CLIENT_CORE
    ) -> AbstractAsyncContextManager[Program]:
        """Run a part of its program, "produce" or "work".

        Raises:
            FileNotFoundError: If the library is not installed.
        """
        modules = PLACES / self.name / "node_modules"
        if self.on_node:
            start = [shutil.which("node") or "", str(HERE / "programs" / f"{self.name}.cjs")]
            installed = bool(start[0]) and modules.is_dir()
        else:
            python = Path(sys.executable) if self.here else PLACES / self.name / "bin" / "python"
            start = [str(python), "-m", f"benchmarks.rivals.programs.{self.name.replace('-', '_')}"]
            installed = python.exists()
        if not installed:
            raise FileNotFoundError(f"{self.name} is not installed: make bench-rivals")
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NODE_PATH": str(modules)}
        if self.plain:
            env["PLAIN_ASYNCIO"] = "1"
        return program([*start, part, json.dumps(task)], f"{self.label} ({part})", env=env, cores=cores)

    def versions(self) -> str:
        """Return the pinned packages with their versions."""
        if self.on_node:
            wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
            return ", ".join(f"{name} {version}" for name, version in wanted.items())
        pinned = (HERE / "requirements" / f"{self.name}.in").read_text().split()
        return ", ".join(one.replace("==", " ") for one in pinned if not (self.plain and "uvloop" in one))


async def _leasehold(redis: Redis) -> int:
    # Completed ids are removed from this list later.
    leased = await redis.llen("jobs:processing") - await redis.scard("jobs:gone")
    return int(await redis.llen("jobs:queue") + leased)


async def _bullmq(redis: Redis) -> int:
    return int(await redis.llen("bull:jobs:wait") + await redis.llen("bull:jobs:active"))


async def _taskiq(redis: Redis) -> int:
    groups: list[dict[str, Any]] = await redis.xinfo_groups("jobs")
    return sum(int(group["pending"]) + int(group["lag"]) for group in groups)


async def _saq(redis: Redis) -> int:
    return int(await redis.zcard("saq:jobs:incomplete"))


async def _arq(redis: Redis) -> int:
    return int(await redis.zcard("arq:queue"))


async def _streaq(redis: Redis) -> int:
    return int(await redis.xlen("streaq:jobs:queues:normal"))


async def _dramatiq(redis: Redis) -> int:
    return int(await redis.hlen("dramatiq:default.msgs"))


LIBRARIES = (
    Library("leasehold", _leasehold),
    Library("leasehold", _leasehold, title="leasehold, without uvloop", plain=True),
    Library("bullmq", _bullmq),
    Library("taskiq-redis", _taskiq),
    Library("saq", _saq),
    Library("arq", _arq),
    Library("streaq", _streaq),
    Library("dramatiq", _dramatiq),
)
#: The names that the command line accepts.
NAMES = tuple(dict.fromkeys(library.name for library in LIBRARIES))
