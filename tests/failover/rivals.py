"""BullMQ, taskiq and Leasequeue beside each other on three rows of the matrix, as a command.

python -m tests.failover.rivals [--rows WORDS]

All three work on the same servers, and meet the same fault. Each has a process that adds a job every 50 ms,
and repeats what has failed, and one that runs them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.rivals.targets import HERE, LIBRARIES, PLACES, ROOT
from tests.failover.faults import ROWS, Row
from tests.failover.topologies import LOGIN, TAG, Node, Topology, Watched
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("sentinel: all Sentinels away", "cluster: SIGKILL", "cluster: SIGSTOP")
#: How long a library may take after the fault, and how long what is left may take when nothing is added (s).
BOUND_SECONDS, DRAIN_SECONDS = 60.0, 15.0
#: How long all libraries work before the fault, and after it (s).
BESIDE_SECONDS = 5.0
PROGRAMS = HERE / "programs"
OURS = "leasequeue"


@dataclass
class Contender:
    """A library at work, and what its two processes have written.

    Attributes:
        name: The library, as in `LIBRARIES`.
        added: When each job was first called and when it was acknowledged, by its number.
        ran: The jobs that have run, and when.
    """

    name: str
    added: dict[int, tuple[float, float]] = field(default_factory=dict)
    ran: list[tuple[int, float]] = field(default_factory=list)

    def command(self, part: str, where: str) -> list[str]:
        """Return what starts a part."""
        if self.name == "bullmq":
            return ["node", str(PROGRAMS / "bullmq_failover.cjs"), part, where]
        if self.name == OURS:
            return [sys.executable, "-m", "benchmarks.rivals.programs.failover", OURS]
        bin_ = PLACES / self.name / "bin"
        if part == "produce":
            return [str(bin_ / "python"), "-m", "benchmarks.rivals.programs.failover", "taskiq"]
        broker = "benchmarks.rivals.programs.failover:taskiq_broker"
        return [str(bin_ / "taskiq"), "worker", "--workers", "1", broker]

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """Note what a part writes, until it ends."""
        assert process.stdout is not None
        async for line in process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                note = json.loads(line)
                if "ran" in note:
                    self.ran.append((note["number"], note["ran"]))
                else:
                    self.added[note["number"]] = note["called"], note["added"]

    def back_at(self, hit: float) -> float | None:
        """Return when a job had run that was called after the fault; None: none had."""
        later = {number for number, (called, _) in self.added.items() if called > hit}
        return min((at for number, at in self.ran if number in later), default=None)

    def never(self) -> set[int]:
        """Return the jobs that were acknowledged and have not run."""
        return {*self.added} - {number for number, _ in self.ran}

    def line(self, row: str, hit: float) -> str:
        """Return its line of the table."""
        back = self.back_at(hit)
        late = back is None or back - hit > BOUND_SECONDS
        after = f"not within {BOUND_SECONDS:.0f} s" if late or back is None else f"{back - hit:.1f} s"
        twice = sum(count > 1 for count in Counter(number for number, _ in self.ran).values())
        return f"| {row} | {self.name} | {after} | {len(self.never())} of {len(self.added)} | {twice} |"


@contextlib.contextmanager
def noting(node: Node) -> Iterator[list[float]]:
    """Note when a server is killed or frozen inside the block."""
    moments: list[float] = []
    kill, freeze = node.kill, node.freeze

    def noted(act: Any) -> None:
        moments.append(time.monotonic())
        act()

    with patch.object(node, "kill", lambda: noted(kill)), patch.object(node, "freeze", lambda: noted(freeze)):
        yield moments


async def start(stack: AsyncExitStack, one: Contender, part: str, where: dict[str, Any]) -> Any:
    """Run a part of a library, in a group of processes of its own; return what ends it."""
    told = json.dumps({**where, "part": part})
    modules = str(PLACES / "bullmq" / "node_modules")
    env = {**os.environ, "WHERE": told, "PYTHONPATH": str(ROOT), "NODE_PATH": modules}
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *one.command(part, told),
        env=env,
        stdin=null,
        stdout=pipe,
        stderr=null,
        start_new_session=True,
    )
    reading = asyncio.create_task(one.read(process))

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    stack.callback(reading.cancel)
    stack.callback(end)
    return end


async def places(topology: Topology) -> dict[str, Any]:
    """Return the addresses for a program; taskiq uses the first node alone, which must be one that lives."""
    nodes = topology.sentinels if isinstance(topology, Watched) else topology.nodes
    primary = await topology.primary()
    nodes = sorted(nodes, key=lambda node: node is primary)
    addresses = [(node.host, node.port) for node in nodes]
    return {"cluster": topology.cluster, "places": addresses, "login": LOGIN, "tag": TAG}


async def run_row(row: Row, contenders: list[Contender]) -> float:
    """Let all libraries work, do the fault, wait for them, and return when it happened."""

    async def are_back(since: float) -> bool:
        return all(one.back_at(since) is not None for one in contenders)

    async with row.topology() as topology, AsyncExitStack() as stack:
        where = await places(topology)
        for one in contenders:
            await start(stack, one, "work", where)
        ends = [await start(stack, one, "produce", where) for one in contenders]
        begun = time.monotonic()
        await until("all libraries run jobs", lambda: are_back(begun), within=BOUND_SECONDS)
        await asyncio.sleep(BESIDE_SECONDS)
        with noting(await topology.primary()) as moments:
            await row.fault(topology, None)  # type: ignore[arg-type]  # these faults do not look at the workload
        hit = moments[0]
        with contextlib.suppress(AssertionError):
            left = max(hit + BOUND_SECONDS - time.monotonic(), 0)
            await until("all run jobs again", lambda: are_back(hit), within=left)
        await asyncio.sleep(BESIDE_SECONDS)
        for end in ends:
            end()

        async def are_done() -> bool:
            return not any(one.never() for one in contenders)

        with contextlib.suppress(AssertionError):
            await until("all jobs have run", are_done, within=DRAIN_SECONDS)
    return hit


def main() -> None:
    """Run the rows, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover.rivals")
    parser.add_argument("--rows", default="", help="a part of the names of rows")
    given = parser.parse_args()
    names = ("bullmq", "taskiq-redis", OURS)
    for one in {library.name: library for library in reversed(LIBRARIES)}.values():
        if one.name in names[:2]:
            sys.stdout.write(f"{one.versions()}\n")
    sys.stdout.write("| row | library | runs jobs again after | never run | run twice |\n|--|--|--|--|--|\n")
    for row in (row for row in ROWS if row.name in NAMES and given.rows in row.name):
        contenders = [Contender(name) for name in names]
        hit = asyncio.run(run_row(row, contenders))
        sys.stdout.write("".join(one.line(row.name, hit) + "\n" for one in contenders))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
