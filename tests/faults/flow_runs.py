"""Flow runs under faults: a plan, callers that insist, and what must hold in the end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from leasequeue import ConnectionLost, FanOut, Worker, current_stage
from leasequeue.errors import ServerBusy
from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, StagePlan
from tests.history.events import FinalState, History, HistoryLog
from tests.history.recording import record_calls, record_runs
from tests.history.rules import check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from leasequeue import AsyncWorkQueue

Answer = TypeVar("Answer")
#: The children of stage `b`, of which the second is a chain, and those of its first child.
CHILDREN, GRANDCHILDREN = 3, 2


def plan(home: str, other: str) -> FlowPlan:
    """Return a plan: a, then b (which fans out twice) and c, then d on the first queue when both are done."""
    return FlowPlan(
        (
            StagePlan("a", home, b"1"),
            StagePlan("b", other, b"2", after=("a",)),
            StagePlan("c", home, b"3", after=("a",)),
            StagePlan("d", home, b"4", after=("b", "c")),
        ),
        result="d",
    )


async def work(data: bytes) -> FanOut[str] | str:
    """Do the work of a stage: return its path, or its children."""
    stage = current_stage()
    queue = stage.home
    if stage.path in {"b", "b/0"}:
        count = CHILDREN if stage.path == "b" else GRANDCHILDREN
        children = [ChildPlan(queue, data) for _ in range(count)]
        if stage.path == "b":
            children[1] = ChildPlan("", b"", parts=(children[1],) * 2, policy="chain")
        return FanOut(children)
    return stage.path


#: The stages that must have ended in each run, and the results of those that do not fan out.
FANNED = ("b", "b/0", "b/1")
PATHS = ("a", "c", "d", "b/2", "b/0/0", "b/0/1", "b/1/0", "b/1/1")


@dataclass
class Flows:
    """Starts runs on two queues, works on them in this process, and records what happens.

    Attributes:
        folder: Where the logs are written.
        name: The name of the first queue; the other one is in its slot.
    """

    folder: Path
    name: str
    started: list[str] = field(default_factory=list)
    losses: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    logs: list[HistoryLog] = field(default_factory=list)
    seen: int = 0

    @property
    def names(self) -> tuple[str, str]:
        """The names of both queues."""
        return self.name, f"{self.name}-other"

    def log(self) -> HistoryLog:
        """Open the log of one more process."""
        self.logs.append(HistoryLog(self.folder / f"{len(self.logs)}.jsonl"))
        return self.logs[-1]

    async def insist(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a call until the server answers it."""
        while True:
            try:
                return await call()
            except (ConnectionLost, ServerBusy):
                self.losses += 1
                await asyncio.sleep(0.01)

    async def start_runs(self, queue: AsyncWorkQueue, stop: asyncio.Event) -> None:
        """Start runs until this is stopped."""
        while not stop.is_set():
            run_id = f"run-{next(self.numbers)}"
            await self.insist(lambda run_id=run_id: queue.flow_runs.start(plan(*self.names), run_id))  # type: ignore[misc]
            self.started.append(run_id)
            await asyncio.sleep(0.02)

    def worker(self, *queues: AsyncWorkQueue) -> Worker:
        """Return a worker on both queues that records its calls and runs."""
        log = self.log()
        home, other = self.names
        worker = Worker(middleware=[record_runs(log)], lease_time=2, feeds={home: [other]})
        for queue in queues:
            worker.handler(record_calls(queue, log))(work)
        return worker

    async def has_started(self, more: int) -> bool:
        """Return whether so many more runs were started than when this returned True last."""
        if len(self.started) < self.seen + more:
            return False
        self.seen = len(self.started)
        return True

    async def all_ended(self, queue: AsyncWorkQueue) -> bool:
        """Return whether all runs have ended, and no item is left."""
        listed = await queue.flow_runs.list(state="active", fields=[], count=1000)
        return not listed

    async def problems(self, *queues: AsyncWorkQueue) -> list[str]:
        """Return what is wrong in the end: with the runs, and with the history."""
        found = []
        for run_id in self.started:
            view = await queues[0].flow_runs.get(run_id, children=True)
            states = {path: stage.state for path, stage in view.stages.items()}
            if view.state != "completed" or states != dict.fromkeys((*FANNED, *PATHS), "done"):
                found.append(f"{run_id} is {view.state}: {states}")
            elif view.results != {path: path for path in PATHS}:
                found.append(f"{run_id} has {view.results}")
        for log in self.logs:
            log.close()
        finals = [await FinalState.read(queue) for queue in queues]
        return [*found, *map(str, check(History.load(self.folder), *finals))]
