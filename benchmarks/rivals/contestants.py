"""Who takes part: the program of each, and how its server side tells that nothing is left to do."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis.asyncio import Redis

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Where `make bench-rivals` installs each of them.
PLACES = ROOT / "build" / "rivals"


@dataclass(frozen=True)
class Contestant:
    """One library.

    Attributes:
        name: Also that of its program, its requirements and its place.
        left: How many jobs the server still holds for it, running ones included.
        title: How tables name it.
        plain: Whether to leave uvloop out.
        here: Whether to run it with the Python that runs this, and what that has installed.
    """

    name: str
    left: Callable[[Redis], Awaitable[int]]
    title: str = ""
    plain: bool = False
    here: bool = False

    @property
    def label(self) -> str:
        """What it is called in the results."""
        return self.title or self.name

    @property
    def ours(self) -> bool:
        """Whether it is Leasehold."""
        return self.name == "leasehold"

    @property
    def on_node(self) -> bool:
        """Whether it is written for Node."""
        return self.name == "bullmq"

    def command(self) -> list[str]:
        """How its program is started.

        Raises:
            FileNotFoundError: If it is not installed.
        """
        if self.on_node:
            node = shutil.which("node")
            if node is None or not (PLACES / self.name / "node_modules").is_dir():
                raise FileNotFoundError(f"{self.name} is not installed: make bench-rivals")
            return [node, str(HERE / "programs" / f"{self.name}.cjs")]
        python = Path(sys.executable) if self.here else PLACES / self.name / "bin" / "python"
        if not python.exists():
            raise FileNotFoundError(f"{self.name} is not installed: make bench-rivals")
        return [str(python), "-m", f"benchmarks.rivals.programs.{self.name.replace('-', '_')}"]

    def environment(self) -> dict[str, str]:
        """What its program finds in its environment."""
        found = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "NODE_PATH": str(PLACES / self.name / "node_modules"),
        }
        return found | {"PLAIN_ASYNCIO": "1"} if self.plain else found

    def versions(self) -> str:
        """What was pinned, in words."""
        if self.on_node:
            wanted = json.loads((HERE / "package.json").read_text())["dependencies"]
            return ", ".join(f"{name} {version}" for name, version in wanted.items())
        asked = (HERE / "requirements" / f"{self.name}.in").read_text().split()
        return ", ".join(one.replace("==", " ") for one in asked if not (self.plain and "uvloop" in one))


async def _leasehold(redis: Redis) -> int:
    # What is completed is swept out of the list of leased ones later.
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


CONTESTANTS = (
    Contestant("leasehold", _leasehold),
    Contestant("leasehold", _leasehold, title="leasehold, without uvloop", plain=True),
    Contestant("bullmq", _bullmq),
    Contestant("taskiq-redis", _taskiq),
    Contestant("saq", _saq),
    Contestant("arq", _arq),
    Contestant("streaq", _streaq),
    Contestant("dramatiq", _dramatiq),
)
