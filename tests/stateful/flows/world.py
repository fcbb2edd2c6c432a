"""Two queues in one slot with flow runs, a clock, and clients that may stop in the middle of a script."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from leasequeue.errors import FlowRunEnded, FlowRunUnfinished, JobUnknown, ScriptFailed, UnknownSignal
from leasequeue.flow.sub_flows import waiting_for
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.plan import sub_run_id
from leasequeue.queue.plans.stages import FinishRow, cancel_rest, fan, finish_stages, settle, start_run
from leasequeue.queue.queue import engine_of
from leasequeue.worker.outcomes import Reject, Snooze
from leasequeue.worker.stage_context import CURRENT, StageContext
from tests.stateful.flows.cutting import STOPPED, stop_next, stop_none
from tests.stateful.flows.rules import FlowRunState, problems, steps
from tests.stateful.live import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from leasequeue import AsyncWorkQueue, Lease
    from leasequeue.queue.plans.plan import FlowPlan, StagePlan

T = TypeVar("T")
#: How long leases last, in seconds, and how far the clock moves when all of them are to end, in ms.
LEASE_S = 100
ROUND_MS = 300_000
#: More rounds than any run of the tests takes to its end.
ROUNDS = 80


@dataclass
class Known:
    """What the test knows of a run.

    Attributes:
        plan: Its plan.
        chosen: Which successors were chosen, by the stage.
        signals: The signals that it has taken, by the stage.
        deleted: Whether a call may have deleted it.
        retried: Whether it was retried: then some stages were entered for what is undone now.
        before: Its last state.
    """

    plan: FlowPlan
    chosen: dict[str, tuple[str, ...]] = field(default_factory=dict)
    signals: dict[str, bytes] = field(default_factory=dict)
    retried: bool = False
    deleted: bool = False
    before: FlowRunState = field(default_factory=lambda: FlowRunState({}))

    def copy(self) -> Known:
        """Return it as it is now."""
        return replace(self, chosen=dict(self.chosen), signals=dict(self.signals))


#: The names of the tasks that a call may leave.
LEFT = {"leasequeue work", "leasequeue release"}


async def _made(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Make a call where the engine of the event loop is found: in it.

    Wait for the tasks that it leaves, such as one that cancels a rest: the next call may find another state.
    """
    try:
        return await make()
    finally:
        while left := [task for task in asyncio.all_tasks() if task.get_name() in LEFT]:
            await asyncio.wait(left)


def unsignalled(run: FlowRunState, signals: Mapping[str, bytes]) -> Iterator[str]:
    """Yield signals that a run has taken, and of which its stages do not know."""
    for name, value in signals.items():
        letter = run.stages.get(name, "")
        if letter == "w" or (letter == "d" and run.results.get(name) != value):
            result = run.results.get(name)
            yield f"it has taken the signal {name}, {value!r}, and that is {letter!r}: {result!r}"


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
        #: The plans of the runs that stages wait for, by the ids of these.
        self.inner: dict[str, FlowPlan] = {}
        #: Whether the last call was stopped.
        self.was_stopped = False
        #: What the last call has chosen, by run and stage: the run has it if it has ended the stage.
        self.choices: dict[tuple[str, str], tuple[str, ...]] = {}
        #: Whether a stopped call was not made good yet: an item may be missing, or there still.
        self.open_ends = False

    # ------------------------------------------------------------------------------------ calls

    def call(self, make: Callable[[], Coroutine[Any, Any, T]], *, stop: int | None = None) -> T | None:
        """Make a call; with `stop`, its script stops after so many writes, and None is returned if it did.

        After each call all runs are checked.
        """
        self.was_stopped = False
        for name in self.names if stop is not None else ():
            stop_next(self.server, name, stop or 0)
        try:
            return self.wait(_made(make))
        except ScriptFailed as error:
            if stop is None or STOPPED not in str(error):
                raise
            self.open_ends = self.was_stopped = True
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
        leases = self.wait(self.queues[queue].lease_many(count, LEASE_S, block=False))
        early = [*filter(None, map(self.early, leases))]
        assert not early, early
        return leases

    def signal(self, run_id: str, name: str, value: int, *, stop: int | None = None) -> None:
        """Give a run a signal."""

        async def send() -> bool:
            with suppress(JobUnknown, UnknownSignal, FlowRunEnded):
                return await self.home.flow_runs.signal(run_id, name, value)
            return False

        if self.call(send, stop=stop):
            known = self.runs[run_id]
            assert name not in known.signals, f"{run_id} has taken a second signal {name}"
            known.signals[name] = b"%d" % value
            self.look()

    def begin_inner(self, queue: int, lease: Lease, *, stop: int | None = None) -> None:
        """Do with the item of a stage that is a flow what a worker does: start its run, or look after it."""
        ref = lease.stage
        assert ref is not None
        run_id = sub_run_id(ref.run, ref.path)
        found, plan = self.state(run_id), self.inner[run_id]
        known = self.runs.setdefault(run_id, Known(plan))
        if found.state != "active":  # it may be started again
            known.deleted = True
            known.retried = known.retried or found.state == "failed"
            self.left_behind |= {one for one in self.items() if one.startswith(f"{run_id}/")}
            if not plan.keep_ms:
                self.fleeting.add(run_id)

        async def start(_: object, *, id: str, parent: bytes, **__: object) -> None:  # noqa: A002 - its name
            await start_run(engine_of(self.home), replace(plan, parent=parent), id)

        async def work() -> None:
            context = CURRENT.set(StageContext.of(lease))
            try:
                value = await waiting_for(start, lambda: self.home.flow_runs, None)()
                row = FinishRow(lease, "done", json.dumps(value).encode())
            except Reject as error:
                row = FinishRow(lease, "failed", str(error).encode())
            except Snooze as signal:
                await self.queues[queue].release(lease, delay=signal.delay)
                return
            finally:
                CURRENT.reset(context)
            await finish_stages(engine_of(self.queues[queue]), [row])

        self.call(work, stop=stop)

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
            is_going = known is not None and "deleting" in known.before.fields
            assert done in {state == "failed" and not is_going, None}

    def delete(self, run_id: str, *, stop: int | None = None) -> None:
        """Delete a run; one that has not ended stays."""
        known = self.runs.get(run_id)
        if known is None:
            return
        its = [one for of, one in self.runs.items() if of.startswith(f"{run_id}~~")]
        for one in (*its, known):
            one.deleted = one.deleted or (one.before.state != "active" and not one.before.active)
        idle = all(one.before.state != "active" and not one.before.active for one in (*its, known))
        try:
            self.call(lambda: self.home.flow_runs.delete(run_id), stop=stop)
        except FlowRunUnfinished:
            assert not idle
        else:
            assert known.deleted or not known.before.state
        for of in [of for of in self.runs if of == run_id or of.startswith(f"{run_id}~~")]:
            if not self.state(of).fields:
                del self.runs[of]

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

    def is_flow(self, lease: Lease) -> bool:
        """Return whether a lease is of a stage that waits for a run of another flow, and its run needs it."""
        stage, ref = self.stage_of(lease), lease.stage
        if ref is None or stage is None or not stage.flow:
            return False
        run = self.state(ref.run)
        return run.stages.get(ref.path) == "w" and ref.mark.encode() == run.fields.get("mark")

    def early(self, lease: Lease) -> str | None:
        """Return what is wrong with a lease of a stage that begins at a time; None: nothing."""
        ref, stage = lease.stage, self.stage_of(lease)
        if ref is None or stage is None or stage.at is None:
            return None
        run = self.state(ref.run)
        if isinstance(stage.at, int):
            due = int(run.fields["created"]) + stage.at
        else:
            text = json.loads(run.fields[stage.at.replace("@", "a:")])
            due = int(datetime.fromisoformat(text).timestamp() * 1000)
        if ref.mark and run.fields.get("mark") == ref.mark.encode() and self.now < due:
            return f"{ref.run}: {ref.path} begins {due - self.now} ms early"
        return None

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
        before = {run_id: known.before for run_id, known in self.runs.items()}
        for run_id, known in self.runs.items():
            now = self.state(run_id)
            mark = known.before.fields.get("mark")
            if now.state and known.deleted and mark and mark != now.fields.get("mark"):  # it is another one
                known.chosen, known.signals, known.before = {}, {}, FlowRunState({})
                known.deleted = known.retried = False
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
            found += [f"{run_id}: {one}" for one in self.untold(run_id, before, now)]
            found += [f"{run_id}: {one}" for one in unsignalled(now, known.signals)]
            known.before = now
        self.choices.clear()
        found += self.unentered()
        if not self.open_ends:
            found += self.misplaced()
        if found:
            found += [f"{run_id}: {dict(known.before.fields)}" for run_id, known in self.runs.items()]
        assert not found, "\n".join(found)

    def untold(self, run_id: str, before: dict[str, FlowRunState], now: FlowRunState) -> Iterator[str]:
        """Yield what is wrong with the stage that has waited for a run which has just ended."""
        parent = StageRef.decode(now.fields.get("parent", b""))
        if parent is None or parent.run not in before or before[run_id].state != "active":
            return
        outer, was = self.state(parent.run), before[parent.run]
        is_its = was.fields.get("mark") == outer.fields.get("mark") == parent.mark.encode()
        if now.state == "active" or not is_its or was.stages.get(parent.path) != "w":
            return
        letter, value = outer.stages.get(parent.path), outer.results.get(parent.path)
        result = now.fields.get("result", b"").decode()
        expected = now.results.get(result) if result else b"null"
        wanted = "fc" if now.state != "completed" else "f" if expected is None else "d"
        if letter not in {*wanted} and not (letter == "w" and self.was_stopped):
            yield f"it is {now.state}, and the stage {parent.path} that waits for it is {letter!r}"
        elif letter == "d" and value != expected:
            yield f"its result is {expected!r}, and that of the stage {parent.path} is {value!r}"

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
        elif run.state == "active" and letter == "w" and self.is_flow(lease):
            self.begin_inner(queue, lease)
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
