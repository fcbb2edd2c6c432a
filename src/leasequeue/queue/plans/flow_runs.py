"""Flow runs: those of a queue, `AsyncWorkQueue.flow_runs`, those of one flow, and one of them by its id."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, cast

import msgspec

from leasequeue import telemetry
from leasequeue.durations import Duration, check_bool, check_int, check_list
from leasequeue.errors import (
    FlowRunUnfinished,
    InvalidArgument,
    JobCancelled,
    JobFailed,
    JobUnknown,
    ResultError,
    UnknownSignal,
)
from leasequeue.errors.describing import text_of
from leasequeue.item import codec
from leasequeue.queue.cleaning import check_runs
from leasequeue.queue.encoding import SLOW_ROWS, error_text
from leasequeue.queue.findings import Problem, read_repairs
from leasequeue.queue.lease import StageRef
from leasequeue.queue.plans.diagram import draw_run
from leasequeue.queue.plans.inputs import read_needs
from leasequeue.queue.plans.plan import as_bytes, check_run_id, sub_run_id
from leasequeue.queue.plans.reading import (
    FLOW_RUN_STATES,
    RUNS_PER_STEP,
    FlowRunReader,
    FlowRunState,
    FlowRunView,
)
from leasequeue.queue.plans.signals import NOT_GIVEN, give_signal, write_signal
from leasequeue.queue.plans.stages import cancel_rest, report, settle_at, stages_of, start_run
from leasequeue.queue.views import CleanReport

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.plans.plan import ChildPlan, FlowPlan, Need, StagePlan
    from leasequeue.queue.results import Results

R_co = TypeVar("R_co", covariant=True)

#: The maximum number of runs that one call lists or finds.
MAX_AT_ONCE = 1000
#: How many runs one step of a listing looks at: 500 took the server 0.8 ms, and 5 ms where it was busy.
_PAGE = 200
#: How many steps `page` takes at most: it looks at 5,000 runs of each state.
_PAGE_STEPS = 25
#: Where a page begins: after a score, as the server writes it, and an id.
_CURSOR = re.compile(rb"(-?(?:inf|\d{1,20}(?:\.\d{1,20})?(?:e[+-]?\d{1,3})?)) (.*)", re.DOTALL)
#: How many unfinished runs of a state `check` examines, the newest.
MAX_CHECKED = 100_000
#: How many stages are reopened, and are looked at for dead letters, at once: no call takes the server 5 ms.
_STEP, _FORGOTTEN = 40, 100
#: How many calls that look for dead letters are sent without a wait for the reply of the one before.
_AT_ONCE = 8
#: The answers of the scripts: done; there is no such run, of `run_delete`, or it has ended; that it is
#: unfinished, of `run_delete`, or there is none; and of `run_reopen` that it is unfinished.
_DONE, _NONE, _REFUSED, _BUSY = 1, 0, -1, -2
#: Values per item in the reply of `find_many`; the first two are its state and its id.
_FIND_FIELDS = 12

#: The state of a flow run, or that it is gone: never started, or no longer kept.
FlowRunStatus: TypeAlias = Literal["active", "completed", "failed", "cancelled", "gone"]


@dataclass(frozen=True)
class One:
    """An output: the result of a stage or a child."""

    path: str
    read: Callable[[bytes], Any]


@dataclass(frozen=True)
class Many:
    """An output: those of a group.

    Attributes:
        outputs: Its parts.
        joined_by: What gives nothing if the group has failed; None: there is nothing of this kind.
    """

    outputs: tuple[Output, ...]
    joined_by: str | None = None


#: Where the results are of which that of a run is made.
Output: TypeAlias = "One | Many"
#: Writes the value of a signal in JSON: one value, or values by name.
WriteSignal: TypeAlias = "Callable[[Any, Mapping[str, Any]], bytes]"
#: Runs, each with when it has entered its state, in ms; and the cursor of the next page, or nothing.
RunsPage: TypeAlias = "tuple[list[tuple[int, str]], bytes]"

#: The type of the error that is published of a run that was cancelled.
_CANCELLED = "FlowCancelled"


class _Failure(msgspec.Struct):
    type: str = ""
    message: str = ""


class _End(msgspec.Struct):
    """What is published of a flow run when it ends; without a result, that of `stage` is in the run."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: _Failure | None = None
    stage: str | None = None


_END = msgspec.json.Decoder(_End)


class FlowRuns:
    """The flow runs of a queue, their home: `AsyncWorkQueue.flow_runs`; or those of one flow: `Flow.runs`.

        run = await queue.flow_runs.get("order-7")
        print(run.state, run.progress, run.results)
        for run in await queue.flow_runs.list(state="failed"):
            await queue.flow_runs.retry(run.id)

    Those of a flow are among those of its queue: only they are read and found. Reading takes several steps,
    between which other clients may act. Every call raises InvalidArgument, QueueClosed and
    ServerError as those of `AsyncWorkQueue` do, and JobUnknown if it is of one run, and there is no such run,
    unless it says otherwise.
    """

    def __init__(self, name: str, engine: Callable[[], Engine], results: Results) -> None:
        self._name = name
        self._engine = engine
        self._results = results
        self._reader = FlowRunReader(engine)
        #: The flow whose runs these are, and what checks values of its attributes; None: those of all flows.
        self._flow: str | None = None
        self._sought: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
        #: What writes the value of each signal, by its name; None: any, as JSON has it.
        self._signals: Mapping[str, WriteSignal] | None = None
        self._of = ""

    def of_flow(self, flow: str, sought: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Self:
        """Return the runs of one flow, with the same methods. `Flow.runs` calls it.

        Args:
            flow: The name of the flow.
            sought: Checks the values of attributes that runs are to be found by, and returns them.
        """
        bound = copy.copy(self)
        bound._flow, bound._sought = flow, sought  # noqa: SLF001 - of this class
        return bound

    def with_signals(self, of: str, signals: Mapping[str, WriteSignal] | None) -> Self:
        """Return runs whose signals are known: what writes the value of each, by its name."""
        bound = copy.copy(self)
        bound._signals, bound._of = signals, of  # noqa: SLF001 - of this class
        return bound

    async def start(self, plan: FlowPlan, run_id: str) -> bool:
        """Start a run of a plan. `Flow.start` and the `add` of chains and groups call this.

        A run starts as a whole or not at all; repeating a call that was lost is safe.

        Args:
            plan: The plan.
            run_id: The run's id.

        Returns:
            False if there is a run of this id.

        Raises:
            InvalidFlow: If the plan cannot be carried out. Nothing was sent.
        """
        check_run_id(run_id)
        if telemetry.active is None:
            return await start_run(self._engine(), plan, run_id)

        producer = telemetry.active.producer(self._name, 1, run_id.encode())
        if producer is not None and producer.trace is not None:
            plan = replace(plan, trace=producer.trace.decode())
        failed: BaseException | None = None
        try:
            return await start_run(self._engine(), plan, run_id)
        except BaseException as error:
            failed = error
            raise
        finally:
            if producer is not None:
                producer.end(failed)

    async def get(
        self, run_id: str, *, fields: Collection[str] | None = None, children: bool = False
    ) -> FlowRunView:
        """Return one run, with its plan.

        Args:
            run_id: The run's id.
            fields: The names of the attributes to read, and of the stages of which to read the result; None:
                all.
            children: Whether to read the children of stages that have fanned out, also their children.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        [view] = await self._reader.views([check_run_id(run_id)], names, children=children)
        plan = await self._reader.plan(run_id)
        if view is None or plan is None or self._flow not in {None, view.flow}:
            raise JobUnknown(run_id, is_flow_run=True)
        stages = dict(view.stages)
        for stage in plan.stages:
            if stage.flow:
                stages[stage.name] = replace(stages[stage.name], run=sub_run_id(run_id, stage.name))
        return replace(view, plan=plan, stages=stages)

    async def list(
        self,
        ids: Iterable[str] | None = None,
        *,
        state: FlowRunState | None = None,
        flow: str | None = None,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
    ) -> builtins.list[FlowRunView | None]:
        """Return runs: those with given ids, or the newest.

        Args:
            ids: The ids of the runs, at most 1,000; None: those that have entered their state last.
            state: Without ids: only those in this state; None: in any.
            flow: Without ids: only those of this flow; None: of any, or of the one whose runs these are.
            fields: As in `get`.
            children: As in `get`.
            count: Without ids: the maximum number of runs, 1 to 1,000.

        Returns:
            With ids, the run of each id at its place; None: there is none. Without, only runs.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        if ids is not None:
            asked = [check_run_id(one) for one in check_list("ids", ids, "ids")]
            if len(asked) > MAX_AT_ONCE:
                raise InvalidArgument("ids", f"{len(asked)} ids", f"at most {MAX_AT_ONCE}")
            views = await self._views(asked, names, children=children)
            return [one if one is None or self._flow in {None, one.flow} else None for one in views]
        flow = self._flow_or(flow)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        newest, _ = await self._listed(_states(state), flow, count)
        found = await self._views([run_id for _, run_id in newest], names, children=children)
        return [view for view in found if view is not None]

    async def page(
        self,
        *,
        after: str = "",
        state: FlowRunState | None = None,
        flow: str | None = None,
        attributes: Mapping[str, object] | None = None,
        fields: Collection[str] | None = None,
        count: int = 100,
    ) -> tuple[builtins.list[FlowRunView], str]:
        """Return some of many runs, and the cursor of the next page: empty if this is the last.

            runs, cursor = await queue.flow_runs.page(state="failed")
            more, cursor = await queue.flow_runs.page(state="failed", after=cursor)

        However many runs there are, one call takes few steps, so a page may have fewer runs than `count`, or
        none, and not be the last. A run that is listed in between is on no page, and one that has entered
        another state in between may be on two.

        Args:
            after: The cursor; empty: the first page.
            state: Only runs in this state; None: in any.
            flow: Only those of this flow; None: as in `list`, with attributes as in `find`.
            attributes: As in `find`; None: runs are listed, as by `list`.
            fields: As in `get`.
            count: The maximum number of runs, 1 to 1,000.

        Raises:
            UnknownAttribute: As in `find`.
        """
        names = _checked_fields(fields)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        cursor = as_bytes(after) if isinstance(after, str) else b"?"
        if cursor and place_of(cursor) is None:
            raise InvalidArgument("after", after, "the cursor that a page has returned, or an empty text")
        flow, states = self._flow_or(flow), _states(state)
        if attributes is None:
            rows, cursor = await self._listed(states, flow, count, cursor, _PAGE_STEPS)
            ids = [run_id for _, run_id in rows]
        else:
            ids, cursor = await self._found(attributes, flow or "", count, cursor, _PAGE_STEPS)
        found = await self._views(ids, names, children=False)
        return [view for view in found if view is not None and view.state in states], _text(cursor)

    async def find(
        self,
        flow: str | None = None,
        /,
        *,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
        **attributes: object,
    ) -> builtins.list[FlowRunView]:
        """Return the runs of a flow that have given values of attributes: first those that are unfinished.

            await queue.flow_runs.find("access", user_id=62, guilds=1985)
            await access.runs.find(user_id=62, guilds=1985)

        A run is found by the attributes that its flow names in `lookup`; by one that is a list, by each of
        its elements. One that has ended is found as long as it is kept.

        Args:
            flow: The name of the flow; None: that of the flow whose runs these are, or chains and groups.
            fields: As in `get`.
            children: As in `get`.
            count: The maximum number of runs, 1 to 1,000.
            attributes: A value for each attribute; a run must have all. A list: a run must have each element.

        Raises:
            UnknownAttribute: If an attribute is not among those of the flow's `lookup`.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        ids, _ = await self._found(attributes, self._flow_or(flow) or "", count)
        found = await self._views(ids[:count], names, children=children)
        return [view for view in found if view is not None]

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run: what waits is removed, what runs is cancelled, and nothing follows.

        From the first step on no stage of it begins. Runs that its stages wait for are cancelled, too. If the
        caller is stopped after that, a worker of the queue does the rest. Return False if it has ended
        already.
        """
        return await self.cancel_for(run_id, "")

    async def cancel_for(self, run_id: str, why: str) -> bool:
        """Cancel a run; a stage that waits for it fails with a text, unless that is empty. For `Flow`."""
        answer = await self._engine().run("run_cancel", of_run=_checked(run_id), as_failed=error_text(why))
        if answer == _REFUSED:
            raise JobUnknown(run_id, is_flow_run=True)
        if answer != _NONE:
            await cancel_rest(self._engine(), StageRef(self._name, run_id, ""))
        return bool(answer == _DONE)

    async def retry(self, run_id: str) -> bool:
        """Do a failed run again from the stages and children that have failed; what is done stays.

        Their attempts begin at 1 again, and their dead letters are dropped. What was tolerated stays, and
        so does a stage that has failed because its `at` names no time. Return False if nothing is done again.

        Raises:
            FlowRunUnfinished: If it has failed, and some items are unfinished: wait for them, or cancel. And
                if a run for which one of its stages has waited has ended, and some of its items have not.
        """
        run = _checked(run_id)
        [view] = await self._reader.views([run_id], (), children=True)
        if view is None:
            raise JobUnknown(run_id, is_flow_run=True)
        if view.state == "failed" and view.unfinished:
            raise FlowRunUnfinished(run_id)  # what ends from now on would be missing among the paths
        for inner in await self._inner_runs(run_id) if view.state == "failed" else ():
            if inner.state != "active" and inner.unfinished:
                raise FlowRunUnfinished(inner.id)  # the end of that would end the stage again, as before
        paths = await self._reader.reopenable(view) if view.state == "failed" else []
        caller, reopened = uuid.uuid4().hex.encode(), 0
        for at in range(0, len(paths), _STEP):
            some, is_last = paths[at : at + _STEP], at + _STEP >= len(paths)
            code, count = await self._engine().run(
                "run_reopen", some, of_run=run, caller=caller, is_last=int(is_last)
            )
            reopened += count
            if code == _BUSY:
                raise FlowRunUnfinished(run_id)
            if code != _DONE:
                break
        return reopened > 0

    async def check(self, *, repair: bool = True) -> CleanReport:
        """Find runs that wait for items which exist nowhere, and have them continue. Part of `fsck`.

        That is so if another client has removed an item, or has completed it and no worker serves its queue.
        Such a stage ends, as failed; one that is foreign is done.

        Args:
            repair: Whether to repair what is found.

        Returns:
            What was found: `examined` is how many unfinished runs there were.
        """
        check_bool("repair", repair)
        report = await check_runs(self._engine()) if repair else CleanReport()
        for state in FLOW_RUN_STATES:
            rows, _ = await self._listed((state,), self._flow, MAX_CHECKED)
            report += await self._check_stages([run_id for _, run_id in rows], repair=repair)
        return report

    async def replay(self, run_id: str, *, new_id: str | None = None) -> str:
        """Start a new run with the plan and the input of another, and return its id.

        Args:
            run_id: The run to be replayed, whatever its state.
            new_id: The id of the new run; None: a random one. If there is a run of this id, none is started.
        """
        new_id = uuid.uuid4().hex if new_id is None else check_run_id(new_id)
        plan = cast("FlowPlan", (await self.get(run_id, fields=())).plan)
        stages = tuple(_renamed(stage, run_id, new_id) for stage in plan.stages)
        await self.start(replace(plan, stages=stages), new_id)
        return new_id

    async def delete(self, run_id: str) -> bool:
        """Delete a run that has ended, with its result and the dead letters of its stages. No trace is left.

        Runs that its stages have waited for are deleted, too. Return False if there is no such run.

        Raises:
            FlowRunUnfinished: If it, or one of these, is active, or some of its items are unfinished.
        """
        run = _checked(run_id)
        answer = await self._engine().run("run_delete", run=run, is_last=0)
        if answer == _DONE:
            for inner in await self._inner_runs(run_id):
                await self.delete(inner.id)
            await self._forget_stages(run_id)
            answer = await self._engine().run("run_delete", run=run, is_last=1)
        if answer == _REFUSED:
            raise FlowRunUnfinished(run_id)
        return bool(answer == _DONE)

    async def report(self, run_id: str, stage: str, result: object = None) -> bool:
        """Record the result of a stage that was handed over to another system, and continue.

        Args:
            run_id: The run's id.
            stage: The stage, or the path of a child, such as `rewards/0`.
            result: Its result, which JSON can hold.

        Returns:
            False if there is no such run, or the stage is not open.
        """
        try:
            value = codec.encode(result)
        except Exception as error:
            raise InvalidArgument("result", result, f"a value that JSON can hold: {error}") from error
        return await report(self._engine(), self._ref(run_id, stage), result=value)

    async def report_failed(self, run_id: str, stage: str, error: str) -> bool:
        """Record that a stage that was handed over to another system has failed.

        Args:
            run_id: The run's id.
            stage: The stage, or the path of a child.
            error: Why it has failed.

        Returns:
            False if there is no such run, or the stage is not open.
        """
        return await report(self._engine(), self._ref(run_id, stage), result=None, error=error)

    async def signal(self, run_id: str, name: str, value: Any = NOT_GIVEN, /, **values: Any) -> bool:
        """Give a run the signal that a stage of it waits for, or will wait for, once. See `FlowRun.signal`.

            await requests.runs.signal("request-7", "approval", by="ann")

        The runs of a flow know its signals, and check the value; those of a queue take any.

        Raises:
            UnknownSignal: If no stage waits for a signal of this name. Nothing has changed.
            FlowRunEnded: If the run has ended. Nothing has changed.
        """
        if self._signals is None:
            written = write_signal("value", value, values)
        elif name in self._signals:
            written = self._signals[name](value, values)
        else:
            raise UnknownSignal(self._of, name, self._signals)
        return await give_signal(self._engine(), self._ref(run_id, name), written)

    async def result(self, run_id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a run has ended, and return the result of its result stage, from JSON.

        Args:
            run_id: The run's id.
            timeout: How long to wait, in seconds; None waits without limit.

        Returns:
            The result; of a stage that has fanned out, the list of those of its children that have succeeded;
            None if the run has no result stage.

        Raises:
            JobFailed: If it has failed.
            JobCancelled: If it was cancelled.
            ResultError: If its result cannot be read.
            TimeoutError: If it is active after `timeout`.
        """
        end = await self._ended(run_id, timeout)
        if end.stage is not None and end.result is msgspec.UNSET:  # it has fanned out
            [children] = await self._read(run_id, [f"{end.stage}/*"])
            return json.loads(children or b"null")
        return None if end.result is msgspec.UNSET else json.loads(bytes(end.result))

    async def mermaid(self, run_id: str) -> str:
        """Return a run as a Mermaid diagram: a box for each stage, with its state and its children's."""
        return draw_run(await self.get(run_id, fields=()))

    def placed(self, child: ChildPlan, home: str) -> ChildPlan:  # noqa: ARG002 - see `ShardedFlowRuns`
        """Return a child as a run adds it whose home is the queue of this name."""
        return child

    async def _read(self, run_id: str, needs: Sequence[Need]) -> builtins.list[bytes | None]:
        return await read_needs(self._engine(), run_id, needs)

    async def _views(
        self, ids: Sequence[str], fields: Collection[str] | None, *, children: bool
    ) -> builtins.list[FlowRunView | None]:
        return await self._reader.views(ids, fields, children=children)

    async def _ended(self, run_id: str, timeout: Duration | None) -> _End:
        """Wait until a run has ended, and return what was published if it was completed."""
        try:
            data = await self._results.wait(check_run_id(run_id), timeout=timeout, what="flow run")
        except JobUnknown as error:
            raise JobUnknown(run_id, is_flow_run=True) from error
        except JobFailed as error:
            raise JobFailed(run_id, error.error, stage="") from error
        try:
            end = _END.decode(data or b"{}")
        except Exception as error:
            raise ResultError(run_id, f"its result cannot be read: {text_of(error)}") from error
        if end.error is None:
            return end
        if end.error.type == _CANCELLED:
            raise JobCancelled(run_id)
        path, _, text = end.error.message.partition(": ")
        raise JobFailed(run_id, text, stage=path)

    def _flow_or(self, flow: object) -> str | None:
        """Return the name of a flow as it was given, or else that of the flow whose runs these are."""
        if flow is None:
            return self._flow
        if not isinstance(flow, str) or self._flow not in {None, flow}:
            allowed = "the name of a flow" if self._flow is None else f"{self._flow!r}, whose runs these are"
            raise InvalidArgument("flow", flow, allowed)
        return flow

    def _ref(self, run_id: str, stage: str) -> StageRef:
        if not isinstance(stage, str) or not stage or "\0" in stage:
            raise InvalidArgument("stage", stage, "the name of a stage, or the path of a child")
        return StageRef(self._name, check_run_id(run_id), stage)

    async def _listed(
        self,
        states: Sequence[str],
        flow: str | None,
        count: int,
        cursor: bytes = b"",
        steps: int | None = None,
    ) -> RunsPage:
        """Return the newest runs of some states after a cursor, and the next one, after at most `steps`."""
        found: dict[str, int] = {}
        while steps is None or steps > 0:
            size = _PAGE if flow is not None else min(count - len(found), _PAGE)
            replies = await asyncio.gather(
                *(
                    self._engine().run(
                        "runs_list",
                        state=one.encode(),
                        of_all=int(flow is None),
                        flow=(flow or "").encode(),
                        cursor=cursor,
                        count=size,
                    )
                    for one in states
                )
            )
            pages = [
                ([(at, _text(one)) for one, at in zip(row[::2], row[1::2], strict=True)], after)
                for after, *row in replies
            ]
            left = count - len(found)
            rows, cursor = joined_pages(pages, left)
            found |= {run_id: at for at, run_id in rows}
            if len(rows) == left or not cursor:
                break
            steps = None if steps is None else steps - 1
            states = [one for one, page in zip(states, pages, strict=True) if any(page)]  # else no more
        return [(at, run_id) for run_id, at in found.items()], cursor

    async def _found(
        self,
        attributes: Mapping[str, object],
        flow: str,
        count: int,
        cursor: bytes = b"",
        steps: int | None = None,
    ) -> tuple[builtins.list[str], bytes]:
        """Return runs with values of attributes after a cursor, and the next one, after at most `steps`."""
        row: builtins.list[bytes] = []
        for name, value in self._sought(attributes).items():
            for text in lookup_texts(value):
                row += (as_bytes(name), as_bytes(text))
        if not row:
            raise InvalidArgument("attributes", attributes, "a value of at least one attribute")
        ids: dict[str, None] = {}
        size = _PAGE if steps is None else count
        while steps is None or steps > 0:
            cursor, *page = await self._engine().run(
                "runs_find", row, flow=as_bytes(flow), cursor=cursor, count=size
            )
            ids |= dict.fromkeys(_text(one) for one in page)
            if not cursor or len(ids) >= count:
                break
            if steps is not None:
                size, steps = min(size, count - len(ids)), steps - 1
        return [*ids], cursor

    async def _check_stages(self, run_ids: Sequence[str], *, repair: bool) -> CleanReport:
        """Find the stages of unfinished runs that wait for items which exist nowhere, and end them."""
        report = CleanReport()
        # Most of them have ended: their children are not read.
        unfinished = [
            view.id
            for at in range(0, len(run_ids), RUNS_PER_STEP)
            for view in await self._reader.views(run_ids[at : at + RUNS_PER_STEP], (), children=False)
            if view is not None and view.unfinished
        ]
        for run_id in unfinished:
            [view] = await self._reader.views([run_id], (), children=True)
            if view is None or not view.unfinished:
                continue
            report += CleanReport(examined=1)
            for name, paths in (await self._reader.open_items(view)).items():
                for at in range(0, len(paths), SLOW_ROWS):
                    some = [self._ref(run_id, path) for path in paths[at : at + SLOW_ROWS]]
                    report += await self._check_items(name or self._name, some, repair=repair)
        return report

    async def _check_items(self, name: str, stages: Sequence[StageRef], *, repair: bool) -> CleanReport:
        ids = {as_bytes(one.item_id): one for one in stages}
        reply = await self._engine().run_at(name, "find_many", [*ids], which=b"living", max_bytes=-1)
        existing = {*reply[2::_FIND_FIELDS]}
        lost = [one for one in ids if one not in existing]
        if lost and repair:
            await settle_at(self._engine(), name, [b"=" + ids[one].encode() for one in lost])
        problem = Problem.SETTLED_STAGE if repair else Problem.STUCK_STAGE
        return CleanReport(findings=read_repairs([part for one in lost for part in (problem.encode(), one)]))

    async def _inner_runs(self, run_id: str) -> builtins.list[FlowRunView]:
        """Return the runs for which stages of a run have waited."""
        views = await self._reader.views(await self._reader.sub_runs(run_id), (), children=False)
        return [view for view in views if view is not None and view.parent == run_id]

    async def _forget_stages(self, run_id: str) -> None:
        """Drop the dead letters of the stages of a run, their notes, and items that were not completed."""
        home = StageRef(self._name, run_id, "")
        for queue, paths in (await self._reader.entered(run_id)).items():
            stages = stages_of(home, [as_bytes(f"{run_id}/{path}") for path in paths])
            for at in range(0, len(stages), _FORGOTTEN * _AT_ONCE):
                starts = range(at, min(at + _FORGOTTEN * _AT_ONCE, len(stages)), _FORGOTTEN)
                calls = (stages[start : start + _FORGOTTEN] for start in starts)
                await asyncio.gather(*(self._engine().run_at(queue, "run_forget", call) for call in calls))


class FlowRun(Generic[R_co]):
    """A flow run. Its `id` finds it in any process: `chain.flow_run(id)` makes the same object there.

        run = await download.call(url).then(resize).add()
        picture = await run.result(timeout=60)

    Attributes:
        id: The id of the run.
        created: Whether it was started, and not there already under this id; None if it was not this object's
            call.

    Every call raises QueueClosed and ServerError as `AsyncWorkQueue.counts` does, and all but `status` raise
    JobUnknown if there is no such run, or it is no longer kept.
    """

    __slots__ = ("_output", "_runs", "created", "id")

    def __init__(self, runs: FlowRuns, run_id: str, output: Output, *, created: bool | None) -> None:
        self.id = run_id
        self.created = created
        self._runs = runs
        self._output = output

    async def result(self, *, timeout: Duration | None = None) -> R_co:
        """Wait until the run has ended, and return its result: that of its last call, or those of its group.

        Args:
            timeout: How long to wait, in seconds; None waits without limit.

        Raises:
            JobFailed: If it has failed.
            JobCancelled: If it was cancelled.
            ResultError: If it was completed, but its result cannot be read.
            TimeoutError: If it is unfinished after `timeout`.
        """
        end = await self._runs._ended(self.id, timeout)  # noqa: SLF001 - of this file
        value: R_co = await self._value(None if end.result is msgspec.UNSET else bytes(end.result))
        return value

    async def view(self) -> FlowRunView:
        """Return what is known of the run: its state, and its stages with their results and errors."""
        return await self._runs.get(self.id, children=True)

    async def status(self) -> FlowRunStatus:
        """Return the state of the run: `"active"`, `"completed"`, `"failed"`, `"cancelled"` or `"gone"`.

        It is gone if there is no such run, or it is no longer kept.
        """
        [view] = await self._runs.list([self.id], fields=[])
        return "gone" if view is None else view.state

    async def cancel(self) -> bool:
        """Cancel the run: what waits is removed, what runs is cancelled, and nothing follows.

        Return False if it has ended.
        """
        return await self._runs.cancel(self.id)

    async def retry(self) -> bool:
        """Continue a run that has failed, from the calls that failed. What is done stays.

        Return False if it has not failed.

        Raises:
            FlowRunUnfinished: If it has failed at once, and some of its calls are unfinished; or as in
                `FlowRuns.retry`.
        """
        return await self._runs.retry(self.id)

    async def signal(self, name: str, value: Any = NOT_GIVEN, /, **values: Any) -> bool:
        """Give the run the signal that a stage of it waits for, or will wait for, once.

            await run.signal("approval", by="ann")

        Args:
            name: The name of the signal.
            value: Its value, of the type that it was declared with.
            values: Or the members of its value, by name. Without both, it is None.

        Returns:
            Whether the run has it: of several callers exactly one gets True. False if there was one before,
            the stage was skipped or has ended, or its time is over by the server's clock.

        Raises:
            UnknownSignal: If no stage waits for a signal of this name. Nothing was sent.
            FlowRunEnded: If the run has ended. Nothing has changed.
            InvalidArgument: If the value is of another type. Nothing was sent.
        """
        return await self._runs.signal(self.id, name, value, **values)

    async def _value(self, raw: bytes | None) -> Any:
        """Return the result of a run that was completed.

        `raw` is the result of its last stage in JSON; None: that has none, or there are several.
        """
        output = self._output
        leaves = [*_leaves(output)]
        if isinstance(output, One) and raw is not None:
            found: dict[str, bytes | None] = {output.path: raw}
        else:
            paths = [one.path for one in leaves]
            read = self._runs._read  # noqa: SLF001 - of this file
            found = dict(zip(paths, await read(self.id, paths), strict=True))
        if leaves and not any(found.values()) and (await self.status()) == "gone":
            raise JobUnknown(self.id, is_flow_run=True)
        if isinstance(output, One) and found[output.path] is None:
            raise ResultError(self.id, f"its last stage, {output.path!r}, has no result")
        try:
            return _value(output, found)
        except Exception as error:
            raise ResultError(self.id, f"its result cannot be read: {text_of(error)}") from error

    def __repr__(self) -> str:
        return f"<flow run {self.id!r}>"


def _leaves(output: Output) -> Iterator[One]:
    if isinstance(output, One):
        yield output
    else:
        if output.joined_by is not None:
            yield One(output.joined_by, _unread)
        for one in output.outputs:
            yield from _leaves(one)


def _value(output: Output, found: dict[str, bytes | None]) -> Any:
    """Return the value of an output; a list has those of its parts that have one."""
    if isinstance(output, One):
        return output.read(found[output.path] or b"")
    return [_value(one, found) for one in output.outputs if _is_there(one, found)]


def _is_there(output: Output, found: dict[str, bytes | None]) -> bool:
    """Return whether an output has a value: a group that has failed has none, whatever its parts have."""
    path = output.path if isinstance(output, One) else output.joined_by
    return path is None or found[path] is not None


def _unread(_: bytes) -> None:
    """Read what a stage has that only joins others."""


def _renamed(stage: StagePlan, run_id: str, new_id: str) -> StagePlan:
    """Return a stage of a run for another run: the data of one without a task names its run."""
    try:
        data = msgspec.json.decode(stage.data, type=dict[str, msgspec.Raw])
        meta = msgspec.json.decode(data["meta"], type=dict[str, Any])
    except (KeyError, ValueError, RecursionError):
        return stage
    if (meta.get("run"), meta.get("stage")) != (run_id, stage.name):
        return stage
    return replace(stage, data=codec.encode({**data, "meta": meta | {"run": new_id}}))


def lookup_texts(value: object) -> list[str]:
    """Return the texts under which a value of an attribute is found: of a list, one for each element.

    What is a string in JSON is that text, and that of any other value is its JSON: 62 and "62" are found by
    the same text, as the arguments of a command line are texts.

        >>> lookup_texts([1985, "EMEA", True])
        ['1985', 'EMEA', 'true']
    """
    if isinstance(value, list | tuple | set | frozenset):
        return [*dict.fromkeys(_lookup_text(one) for one in value)]
    return [_lookup_text(value)]


def _lookup_text(value: object) -> str:
    if isinstance(value, str):
        return value
    encoded = codec.encode(value, ordered=True)
    return json.loads(encoded) if encoded[:1] == b'"' else encoded.decode()


def joined_pages(pages: Iterable[RunsPage], count: int) -> RunsPage:
    """Join pages of several states or shards that begin after one cursor: at most `count` runs."""
    pages = [*pages]
    # One may have more runs between the end of its page and those of the others.
    ends = ((place, cursor) for _, cursor in pages if (place := place_of(cursor)) is not None)
    end, further = max(ends, default=(None, b""))
    rows = sorted(
        (row for some, _ in pages for row in some if end is None or (row[0], as_bytes(row[1])) >= end),
        key=lambda row: (row[0], as_bytes(row[1])),
        reverse=True,
    )
    if len(rows) > count or (len(rows) == count and end is not None):
        at, run_id = rows[count - 1]
        return rows[:count], b"%d %b" % (at, as_bytes(run_id))
    return rows, further


def _states(state: object) -> Sequence[FlowRunState]:
    """Return the states of which one is asked for, or all."""
    if state is None:
        return FLOW_RUN_STATES
    for one in FLOW_RUN_STATES:
        if one == state:
            return (one,)
    raise InvalidArgument("state", state, f"one of {', '.join(FLOW_RUN_STATES)}, or None")


def place_of(cursor: bytes) -> tuple[float, bytes] | None:
    """Return the score and the id that are in a cursor; None: there are none."""
    found = _CURSOR.fullmatch(cursor)
    return None if found is None else (float(found[1]) // 1, found[2])  # as the script returns scores


def _checked(run_id: str) -> bytes:
    return check_run_id(run_id).encode()


def _checked_fields(fields: Collection[str] | None) -> Sequence[str] | None:
    return None if fields is None else check_list("fields", fields, "names")


def _text(value: Any) -> str:
    text: str = value.decode(errors="surrogateescape")
    return text
