"""Two queues in one slot with flow runs, a clock, and clients that may stop in the middle of a script."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.errors import FlowRunUnfinished, JobUnknown, ScriptFailed
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.stages import FinishRow, cancel_rest, fan, finish_stages, settle, start_run
from leasequeue.queue.queue import engine_of
from tests.stateful.flows.cutting import STOPPED, stop_next, stop_none
from tests.stateful.flows.rules import FlowRunState, problems, steps
from tests.stateful.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.queue.plans.plan import FlowPlan, StagePlan

T = TypeVar("T")
#: How long leases last, in seconds, and how far the clock moves when all of them are to end, in ms.
LEASE_S = 100
ROUND_MS = 300_000
#: More rounds than any run of the tests takes to its end.
ROUNDS = 40


@dataclass
class Known:
    """What the test knows of a run.

    Attributes:
        plan: Its plan.
        chosen: Which successors were chosen, by the stage.
        deleted: Whether a call may have deleted it.
        retried: Whether it was retried: then some stages were entered for what is undone now.
        before: Its last state.
    """

    plan: FlowPlan
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    retried: bool = False
    deleted: bool = False
    before: FlowRunState = field(default_factory=lambda: FlowRunState({}))


async def _made(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call where the engine of the event loop is found: in it."""
    return await make()


async def settle_queue(queue: AsyncWorkQueue) -> None:
    """Settle what is noted on a queue."""
    await settle(engine_of(queue))


class World(Live):
    """The queues, and the runs that were started.

    Args:
        url: The server.
        name: The name of the first queue, whose keys hold the runs.
    """

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url)
        self.names = (f"{{{name}}}", f"{{{name}}}:other")
        self.queues = [self.open(one) for one in self.names]
        self.home = self.queues[0]
        self.runs: dict[str, Known] = {}
        #: The ids of runs that were not kept when they ended.
        self.fleeting: set[str] = set()
        self.left_behind: set[str] = set()
        #: What the last call has chosen, by run and stage: the run has it if it has ended the stage.
        self.choices: dict[tuple[str, str], tuple[str, ...]] = {}
        #: Whether a stopped call was not made good yet: an item may be missing, or there still.
        self.open_ends = False

    # ------------------------------------------------------------------------------------ calls

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], *, stop: int | None = None) -> T | None:
        """Make a call; with `stop`, its script stops after so many writes, and None is returned if it did.

        After each call all runs are checked.
        """
        for name in self.names if stop is not None else ():
            stop_next(self.server, name, stop or 0)
        try:
            return self.wait(_made(make))
        except ScriptFailed as error:
            if stop is None or STOPPED not in str(error):
                raise
            self.open_ends = True
            return None
        finally:
            for name in self.names if stop is not None else ():
                stop_none(self.server, name)
            self.look()

    def start(self, plan: FlowPlan, run_id: str, *, stop: int | None = None) -> bool | None:
        """Start a run; return whether it is new."""
        if run_id not in self.runs or not self.runs[run_id].before.state:
            # Items that stopped calls of an earlier run of this id have left: their holders complete them.
            self.left_behind |= {one for one in self.items() if one.startswith(f"{run_id}/")}
            self.runs[run_id] = Known(plan)
            if not plan.keep_ms:
                self.fleeting.add(run_id)
        return self.call(lambda: start_run(engine_of(self.home), plan, run_id), stop=stop)

    def lease(self, queue: int, count: int = 1) -> list[Lease]:
        """Lease items."""
        return self.wait(self.queues[queue].lease_many(count, LEASE_S, block=False))

    def finish(self, queue: int, row: FinishRow, *, stop: int | None = None) -> bool | None:
        """Finish a stage; return whether this call has completed its item."""
        ref = row.lease.stage
        if ref is not None and row.kind == "done" and row.extra:
            self.choices[ref.run, ref.path] = tuple(json.loads(row.extra))
        done = self.call(lambda: finish_stages(engine_of(self.queues[queue]), [row]), stop=stop)
        return None if done is None else done[0]

    def cancel(self, run_id: str, *, stop: int | None = None) -> bool | None:
        """Cancel a run; return whether it was active."""
        known = self.runs.get(run_id)
        state = known.before.state if known else ""
        try:
            done = self.call(lambda: self.home.flow_runs.cancel(run_id), stop=stop)
        except JobUnknown:
            assert not state
            return False
        assert done in {state == "active", None}
        return done

    def retry(self, run_id: str, *, stop: int | None = None) -> None:
        known = self.runs.get(run_id)
        state = known.before.state if known else ""
        if known and state == "failed":
            known.retried = True
        try:
            done = self.call(lambda: self.home.flow_runs.retry(run_id), stop=stop)
        except JobUnknown:
            assert not state
        except FlowRunUnfinished:
            assert state == "failed"
        else:
            assert done in {state == "failed", None}

    def delete(self, run_id: str, *, stop: int | None = None) -> None:
        """Delete a run; one that has not ended stays."""
        known = self.runs.get(run_id)
        if known is None:
            return
        known.deleted = known.before.state != "active" and not known.before.active
        try:
            self.call(lambda: self.home.flow_runs.delete(run_id), stop=stop)
        except FlowRunUnfinished:
            assert not known.deleted
        else:
            assert known.deleted or not known.before.state
        if not self.state(run_id).fields:
            del self.runs[run_id]

    def drop_letters(self) -> None:
        """Drop the dead letters of runs that were not kept: such a run leaves them, as items do."""
        for queue in self.queues:
            letters = self.wait(queue.dead_letters.list())
            left = [one.id for one in letters if one.id.partition("/")[0] in self.fleeting]
            if left:
                self.wait(queue.dead_letters.drop(*left))

    # ----------------------------------------------------------------------------------- checks

    def stage_of(self, lease: Lease) -> StagePlan | None:
        """Return the stage of the plan that a lease is of; None: it is of a child, or its run was deleted."""
        ref = lease.stage
        known = self.runs.get(ref.run) if ref else None
        stages = known.plan.linked().stages if known else ()
        return next((stage for stage in stages if ref and stage.name == ref.path), None)

    def keys(self) -> set[str]:
        """Return the keys of the queues, without those that stay: counters, and what has a time to live."""
        found = set()
        for name in self.names:
            for key in self.server.scan_iter(count=1000):
                if key.startswith(f"{name}:".encode()) and self.server.pttl(key) == -1:
                    found.add(key.decode().removeprefix(name))
        return found - {":fence", ":other:fence"}

    def state(self, run_id: str) -> FlowRunState:
        return FlowRunState.of(self.server.hgetall(f"{self.names[0]}:run:{run_id}"))

    def look(self) -> None:
        """Compare each run with its plan, and with its state before."""
        found = []
        for run_id, known in self.runs.items():
            now = self.state(run_id)
            if not now.state:  # it is not started yet, or deleted
                if known.before.state and known.plan.keep_ms and not known.deleted:
                    found.append(f"{run_id} is gone")
                known.before = now
                continue
            for path, letter in now.stages.items():
                if letter == "d" and known.before.stages.get(path) != "d" and (run_id, path) in self.choices:
                    known.chosen[path] = self.choices[run_id, path]
            found += [f"{run_id}: {one}" for one in steps(known.before, now, retried=known.retried)]
            found += [
                f"{run_id}: {one}" for one in problems(known.plan, now, known.chosen, retried=known.retried)
            ]
            known.before = now
        self.choices.clear()
        found += self.unentered()
        if not self.open_ends:
            found += self.misplaced()
        if found:
            found += [f"{run_id}: {dict(known.before.fields)}" for run_id, known in self.runs.items()]
        assert not found, "\n".join(found)

    def unentered(self) -> Iterator[str]:
        """Yield stages that were never entered, and have an item."""
        for one in self.items():
            run_id, _, path = one.partition("/")
            known = self.runs.get(run_id)
            if (
                known
                and known.before.state
                and path not in known.before.stages
                and one not in self.left_behind
            ):
                yield f"{run_id}: {path} was not entered, and has an item"

    def misplaced(self) -> Iterator[str]:
        """Yield stages that are open without an item, and items of stages that have ended."""
        ids = self.items()
        noted = {one.decode() for name in self.names for one in self.server.hgetall(f"{name}:unsettled")}
        for run_id, known in self.runs.items():
            now = known.before
            of_run = {one.removeprefix(f"{run_id}/") for one in ids if one.startswith(f"{run_id}/")}
            for path, letter in now.stages.items():
                if letter == "w" and path not in of_run and f"{run_id}/{path}" not in noted:
                    yield f"{run_id}: {path} is open, and has no item"
            rest = any(one.startswith("!") and f"\0{run_id}\0" in one for one in noted)
            for path in of_run:
                if now.stages.get(path, "") not in {"w", "x"} and not rest:
                    yield f"{run_id}: {path} is {now.stages.get(path, '')!r}, and has an item"

    def items(self) -> set[str]:
        """Return the ids of all items."""
        found = set()
        for name in self.names:
            start = f"{name}:item:".encode()
            found |= {
                one.removeprefix(start).decode()
                for one in self.server.scan_iter(count=1000)
                if one.startswith(start)
            }
        return found

    # --------------------------------------------------------------------------------- recovery

    def recover(self) -> None:
        """Let workers and maintenance run until all runs have ended, as in a live system."""
        self.open_ends = True  # until the last step
        for _ in range(ROUNDS):
            self.now += ROUND_MS
            for number, queue in enumerate(self.queues):
                for lease in self.lease(number, 100):
                    self.work(number, lease)
                self.call(partial(settle_queue, queue))
                self.call(queue.light_clean)
            self.cancel_rests()
            self.call(self.home.flow_runs.check)
            if all(known.before.state != "active" for known in self.runs.values()) and not self.items():
                break
        self.open_ends = False
        self.look()

    def work(self, queue: int, lease: Lease) -> None:
        """Do with an item of a run what a worker does; the handler of a stage returns at once."""
        stage = lease.stage
        assert stage is not None
        run = self.state(stage.run)
        letter = run.stages.get(stage.path, "")
        if letter == "x":
            self.call(lambda: fan(engine_of(self.queues[queue]), lease))
        elif run.state == "active" and letter == "w":
            self.finish(queue, FinishRow(lease, "done", b'"late"'))
        else:
            self.finish(queue, FinishRow(lease, "done" if letter == "d" else "drop"))

    async def _cancel_rest(self, ref: StageRef) -> None:
        await cancel_rest(engine_of(self.home), ref)

    def cancel_rests(self) -> None:
        """Carry out what is noted to be cancelled."""
        for one in self.server.hkeys(f"{self.names[0]}:unsettled"):
            if one.startswith(b"!"):
                ref = StageRef.decode(one[1:])
                assert ref is not None
                self.call(partial(self._cancel_rest, ref))
