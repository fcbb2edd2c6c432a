"""The libraries: the program of each, its server, and the commands that count its jobs there."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench import CLIENT_CORE, Program, program
from benchmarks.rivals.servers import OtherServer, RedisServer

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from benchmarks.rivals.servers import Server

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
#: Where `make bench-rivals` installs the libraries.
PLACES = ROOT / "build" / "rivals"


@dataclass(frozen=True)
class Library:
    """One library."""

    name: str  #: also that of its program, its requirements and its environment
    held: tuple[str, ...] = ()  #: the commands that count its jobs on Redis, also running ones
    on: str = "Redis"  #: its server, "Redis" or one of `servers.KINDS`
    title: str = ""  #: its name in the results, if another
    plain: bool = False  #: whether to run it without uvloop
    program_name: str = ""  #: the name of its program, if another
    results: bool = False  #: whether its caller can wait for results
    share: float = 1.0  #: how many of the jobs in `drain` and `fifty` it gets, if it is too slow for all
    here: bool = False  #: whether to run it with the Python of this process

    @property
    def label(self) -> str:
        """Its name in the results."""
        title = self.title or self.name
        return f"{title}, without uvloop" if self.plain else title

    @property
    def installed(self) -> bool:
        """Whether `make bench-rivals` has installed it."""
        return (PLACES / self.name).is_dir()

    @property
    def ours(self) -> bool:
        """Whether it is Leasequeue."""
        return self.name == "leasequeue"

    @property
    def on_node(self) -> bool:
        """Whether it runs on Node."""
        return self.name == "bullmq"

    def server(self) -> AbstractAsyncContextManager[Server]:
        """Run an empty server of its kind."""
        return RedisServer.start(self.held) if self.on == "Redis" else OtherServer.start(self.on)

    def program(
        self, part: str, task: dict[str, Any], cores: list[int] = CLIENT_CORE
    ) -> AbstractAsyncContextManager[Program]:
        """Run a part of its program, "produce" or "work"."""
        modules = PLACES / self.name / "node_modules"
        if self.on_node:
            script = HERE / "programs" / f"{self.program_name or self.name}.cjs"
            start = [shutil.which("node") or "", str(script)]
            installed = bool(start[0]) and modules.is_dir()
        else:
            python = Path(sys.executable) if self.here else PLACES / self.name / "bin" / "python"
            start = [str(python), "-m", "benchmarks.rivals.programs", self.program_name or self.name]
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


_OURS = ("LLEN jobs:queue", "ZCARD jobs:deadlines")
LIBRARIES = (
    Library("leasequeue", _OURS, results=True),
    Library("leasequeue", _OURS, results=True, plain=True),
    Library(
        "leasequeue", _OURS, results=True, title="leasequeue, plain items", program_name="leasequeue-items"
    ),
    Library("bullmq", ("LLEN bull:jobs:wait", "LLEN bull:jobs:active"), results=True),
    Library("taskiq-redis", ("XINFO GROUPS jobs",), results=True),
    Library("saq", ("ZCARD saq:jobs:incomplete",)),
    Library("arq", ("ZCARD arq:queue",), results=True),
    Library("streaq", ("XLEN streaq:jobs:queues:normal",)),
    Library("dramatiq", ("HLEN dramatiq:default.msgs",)),
    Library("celery", ("LLEN jobs", "HLEN unacked"), results=True),
    Library("rq", ("LLEN rq:queue:jobs", "ZCARD rq:wip:jobs"), results=True, share=0.1),
    Library("nats", on="NATS", title="NATS JetStream, push"),
    Library("beanstalkd", on="beanstalkd", title="beanstalkd, pipelined"),
    Library("greenstalk", on="beanstalkd", title="beanstalkd, greenstalk"),
)
#: Those with chains and joins, which `make bench` measures beside ours if they are installed.
FLOWS = (
    Library("leasequeue", _OURS, program_name="leasequeue_flows"),
    Library("celery", ("LLEN jobs", "HLEN unacked"), program_name="celery_flows", share=0.2),
    Library("bullmq", ("LLEN bull:jobs:wait", "LLEN bull:jobs:active"), program_name="bullmq_flows"),
)
#: The names that the command line accepts.
NAMES = tuple(dict.fromkeys(library.name for library in LIBRARIES))
