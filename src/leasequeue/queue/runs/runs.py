"""Flow runs: `AsyncWorkQueue.runs`. One concept, so this file may be longer than others."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leasequeue import codec, telemetry
from leasequeue.durations import Duration, check_bool, check_int, check_list
from leasequeue.errors import InvalidArgument, ItemUnknown, RunGone, RunUnfinished
from leasequeue.queue.cleaning import check_runs
from leasequeue.queue.observed import observed_start
from leasequeue.queue.plan import check_run_id
from leasequeue.queue.runs.checks import check_stages
from leasequeue.queue.runs.lookups import lookup_texts
from leasequeue.queue.runs.reads import RunReader
from leasequeue.queue.runs.results import read_result
from leasequeue.queue.runs.settling import stages_of
from leasequeue.queue.runs.stages import cancel_rest, report, start_run
from leasequeue.queue.runs.views import RUN_STATES, FlowRunView, RunState
from leasequeue.queue.stage_ref import StageRef
from leasequeue.queue.views import CleanReport

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Collection, Iterable, Sequence

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.plan import Plan
    from leasequeue.queue.results import Results
    from leasequeue.queue.slot import QueueObject

#: The maximum number of runs that one call lists or finds.
MAX_AT_ONCE = 1000
#: How many runs one step of a listing looks at.
_PAGE = 500
#: How many unfinished runs of a state `check` examines, the newest.
MAX_CHECKED = 100_000
#: How many stages are reopened, and dead letters dropped, at once: no call takes the server 5 ms.
_STEP = 40
#: The answers of the scripts: done; there is no such run, of `run_delete`, or it has ended; that it is
#: unfinished, of `run_delete`, or there is none; and of `run_reopen` that it is unfinished.
_DONE, _NONE, _REFUSED, _BUSY = 1, 0, -1, -2


class Runs:
    """The flow runs of a queue, their home: `AsyncWorkQueue.runs`.

        run = await queue.runs.get("order-7")
        print(run.state, run.progress, run.results)
        for run in await queue.runs.list(state="failed"):
            await queue.runs.retry(run.id)

    Reading takes several steps, between which other clients may act. Every call raises QueueClosed and
    ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, queue: QueueObject, engine: Callable[[], Engine], results: Results) -> None:
        self._queue = queue
        self._engine = engine
        self._results = results
        self._reader = RunReader(engine)

    async def start(self, plan: Plan, run_id: str) -> bool:
        """Start a run of a plan. `Flow.start` and the `add` of chains and groups call this.

        A run starts as a whole or not at all; repeating a call that was lost is safe.

        Args:
            plan: The plan.
            run_id: The run's id.

        Returns:
            False if there is a run of this id.

        Raises:
            InvalidFlow: If the plan cannot be carried out. Nothing was sent.
            InvalidArgument: If `run_id` cannot be an id.
        """
        check_run_id(run_id)
        if telemetry.active is None:
            return await start_run(self._queue, plan, run_id)

        async def start(plan: Plan) -> bool:
            return await start_run(self._queue, plan, run_id)

        return await observed_start(telemetry.active, self._queue.name, plan, run_id, start)

    async def get(
        self, run_id: str, *, fields: Collection[str] | None = None, children: bool = False
    ) -> FlowRunView:
        """Return one run, with its plan.

        Args:
            run_id: The run's id.
            fields: The names of the attributes to read, and of the stages of which to read the result; None:
                all.
            children: Whether to read the children of stages that have fanned out, also their children.

        Raises:
            RunGone: If there is no such run.
            InvalidArgument: If an argument cannot be used.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        [view] = await self._reader.views([check_run_id(run_id)], names, children=children)
        plan = await self._reader.plan(run_id)
        if view is None or plan is None:
            raise RunGone(run_id)
        return replace(view, plan=plan)

    async def list(
        self,
        ids: Iterable[str] | None = None,
        *,
        state: RunState | None = None,
        flow: str | None = None,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
    ) -> builtins.list[FlowRunView | None]:
        """Return runs: those with given ids, or the newest.

        Args:
            ids: The ids of the runs, at most 1,000; None: those that have entered their state last.
            state: Without ids: only those in this state; None: in any.
            flow: Without ids: only those of this flow; None: of any.
            fields: As in `get`.
            children: As in `get`.
            count: Without ids: the maximum number of runs, 1 to 1,000.

        Returns:
            With ids, the run of each id at its place; None: there is none. Without, only runs.

        Raises:
            InvalidArgument: If an argument cannot be used.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        if ids is not None:
            asked = [check_run_id(one) for one in check_list("ids", ids, "ids")]
            if len(asked) > MAX_AT_ONCE:
                raise InvalidArgument("ids", f"{len(asked)} ids", f"at most {MAX_AT_ONCE}")
            return await self._reader.views(asked, names, children=children)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        if state is not None and state not in RUN_STATES:
            raise InvalidArgument("state", state, f"one of {', '.join(RUN_STATES)}, or None")
        listed: dict[str, int] = {}
        for one in RUN_STATES if state is None else (state,):
            listed |= await self._listed(one, flow, count)
        newest = sorted(listed, key=lambda run_id: -listed[run_id])[:count]
        found = await self._reader.views(newest, names, children=children)
        return [view for view in found if view is not None]

    async def find(
        self,
        flow: str = "",
        /,
        *,
        fields: Collection[str] | None = None,
        children: bool = False,
        count: int = 100,
        **attributes: object,
    ) -> builtins.list[FlowRunView]:
        """Return the runs of a flow that have given values of attributes: first those that are unfinished.

            await queue.runs.find("access", user_id=62, guilds=1985)

        A run is found by the attributes that its flow names in `lookup`; by one that is a list, by each of
        its elements. One that has ended is found as long as it is kept.

        Args:
            flow: The name of the flow; empty for chains and groups.
            fields: As in `get`.
            children: As in `get`.
            count: The maximum number of runs, 1 to 1,000.
            attributes: A value for each attribute; a run must have all. A list: a run must have each element.

        Raises:
            InvalidArgument: If an argument cannot be used.
        """
        check_bool("children", children)
        names = _checked_fields(fields)
        check_int("count", count, minimum=1, maximum=MAX_AT_ONCE)
        if not isinstance(flow, str):
            raise InvalidArgument("flow", flow, "the name of a flow")
        row: builtins.list[bytes] = []
        for name, value in attributes.items():
            for text in lookup_texts(value):
                row += (name.encode(), text.encode(errors="surrogateescape"))
        if not row:
            raise InvalidArgument("attributes", attributes, "a value of at least one attribute")
        ids: dict[str, None] = {}
        cursor: bytes | None = None
        while cursor != b"" and len(ids) < count:
            cursor, *page = await self._engine().run(
                "runs_find", row, flow=flow.encode(), cursor=cursor or b"", count=_PAGE
            )
            ids |= dict.fromkeys(_text(one) for one in page)
        found = await self._reader.views([*ids][:count], names, children=children)
        return [view for view in found if view is not None]

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run: what waits is removed, what runs is cancelled, and nothing follows.

        From the first step on no stage of it begins. If the caller is stopped after that, a worker of the
        queue does the rest.

        Returns:
            False if it has ended already.

        Raises:
            RunGone: If there is no such run.
            InvalidArgument: If `run_id` cannot be an id.
        """
        answer = await self._engine().run("run_cancel", of_run=_checked(run_id))
        if answer == _REFUSED:
            raise RunGone(run_id)
        if answer != _NONE:
            await cancel_rest(self._queue, StageRef(self._queue.name, run_id, ""))
        return bool(answer == _DONE)

    async def retry(self, run_id: str) -> bool:
        """Do a failed run again from the stages and children that have failed; what is done stays.

        Their attempts begin at 1 again, and their dead letters are dropped. What was tolerated stays, too.

        Returns:
            False if it has not failed.

        Raises:
            RunGone: If there is no such run.
            RunUnfinished: If it has failed, and some of its items are unfinished: wait for them, or cancel.
            InvalidArgument: If `run_id` cannot be an id.
        """
        run = _checked(run_id)
        [view] = await self._reader.views([run_id], (), children=True)
        if view is None:
            raise RunGone(run_id)
        if view.state == "failed" and view.unfinished:
            raise RunUnfinished(run_id)  # what ends from now on would be missing among the paths
        paths = await self._reader.reopenable(view) if view.state == "failed" else []
        caller, reopened = uuid.uuid4().hex.encode(), 0
        for at in range(0, len(paths), _STEP):
            some, is_last = paths[at : at + _STEP], at + _STEP >= len(paths)
            code, count = await self._engine().run(
                "run_reopen", some, of_run=run, caller=caller, is_last=int(is_last)
            )
            reopened += count
            if code == _BUSY:
                raise RunUnfinished(run_id)
            if code != _DONE:
                break
        return reopened > 0

    async def check(self, *, repair: bool = True) -> CleanReport:
        """Find runs that wait for items which exist nowhere, and have them go on. Part of `fsck`.

        That is so if another client has removed an item, or has completed it and no worker serves its queue.
        Such a stage ends, as failed; one that is foreign is done.

        Args:
            repair: Whether to repair what is found.

        Returns:
            What was found: `examined` is how many unfinished runs there were.

        Raises:
            InvalidArgument: If `repair` is no bool.
        """
        check_bool("repair", repair)
        report = await check_runs(self._engine()) if repair else CleanReport()
        for state in RUN_STATES:
            ids = await self._listed(state, None, MAX_CHECKED)
            report += await check_stages(self._queue, self._reader, [*ids], repair=repair)
        return report

    async def replay(self, run_id: str, *, new_id: str | None = None) -> str:
        """Start a new run with the plan and the input of another, and return its id.

        Args:
            run_id: The run to be replayed, whatever its state.
            new_id: The id of the new run; None: a random one. If there is a run of this id, none is started.

        Raises:
            RunGone: If there is no such run.
            InvalidArgument: If an argument cannot be used.
        """
        new_id = uuid.uuid4().hex if new_id is None else check_run_id(new_id)
        plan = await self._reader.plan(check_run_id(run_id))
        if plan is None:
            raise RunGone(run_id)
        await self.start(plan, new_id)
        return new_id

    async def delete(self, run_id: str) -> bool:
        """Delete a run that has ended, with its result and the dead letters of its stages. No trace is left.

        Returns:
            False if there is no such run.

        Raises:
            RunUnfinished: If it is active, or some of its items are unfinished.
            InvalidArgument: If `run_id` cannot be an id.
        """
        run = _checked(run_id)
        answer = await self._engine().run("run_delete", run=run, is_last=0)
        if answer == _DONE:
            await self._forget_stages(run_id)
            answer = await self._engine().run("run_delete", run=run, is_last=1)
        if answer == _REFUSED:
            raise RunUnfinished(run_id)
        return bool(answer == _DONE)

    async def report(self, run_id: str, stage: str, result: object = None) -> bool:
        """Record the result of a stage that was handed over to another system, and go on.

        Args:
            run_id: The run's id.
            stage: The stage, or the path of a child, such as `rewards/0`.
            result: Its result, which JSON can hold.

        Returns:
            False if there is no such run, or the stage is not open.

        Raises:
            InvalidArgument: If an argument cannot be used.
        """
        try:
            value = codec.encode(result)
        except Exception as error:
            raise InvalidArgument("result", result, f"a value that JSON can hold: {error}") from error
        return await report(self._queue, self._ref(run_id, stage), result=value)

    async def report_failed(self, run_id: str, stage: str, error: str) -> bool:
        """Record that a stage that was handed over to another system has failed.

        Args:
            run_id: The run's id.
            stage: The stage, or the path of a child.
            error: Why it has failed.

        Returns:
            False if there is no such run, or the stage is not open.

        Raises:
            InvalidArgument: If an argument cannot be used.
        """
        return await report(self._queue, self._ref(run_id, stage), result=None, error=error)

    async def result(self, run_id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a run has ended, and return the result of its result stage, from JSON.

        Args:
            run_id: The run's id.
            timeout: How long to wait, in seconds; None waits without limit.

        Returns:
            The result; of a stage that has fanned out, the list of those of its children that have succeeded;
            None if the run has no result stage.

        Raises:
            FlowFailed: If it has failed.
            FlowCancelled: If it was cancelled.
            RunGone: If there is no such run.
            ResultError: If its result cannot be read.
            TimeoutError: If it is active after `timeout`.
            InvalidArgument: If an argument cannot be used.
        """
        try:
            data = await self._results.wait(check_run_id(run_id), timeout=timeout, what="flow run")
        except ItemUnknown as error:
            raise RunGone(run_id) from error
        return await read_result(self._queue, run_id, data)

    def _ref(self, run_id: str, stage: str) -> StageRef:
        if not isinstance(stage, str) or not stage or "\0" in stage:
            raise InvalidArgument("stage", stage, "the name of a stage, or the path of a child")
        return StageRef(self._queue.name, check_run_id(run_id), stage)

    async def _listed(self, state: str, flow: str | None, count: int) -> dict[str, int]:
        """Return the newest runs of a state, and when each has entered it."""
        found: dict[str, int] = {}
        cursor: bytes | None = None
        while cursor != b"" and len(found) < count:
            cursor, *page = await self._engine().run(
                "runs_list",
                state=state.encode(),
                of_all=int(flow is None),
                flow=(flow or "").encode(),
                cursor=cursor or b"",
                count=min(count, _PAGE) if flow is None else _PAGE,
            )
            found |= {_text(run_id): at for run_id, at in zip(page[::2], page[1::2], strict=True)}
        return found

    async def _forget_stages(self, run_id: str) -> None:
        """Drop the dead letters of the stages of a run, their notes, and items that were not completed."""
        home = StageRef(self._queue.name, run_id, "")
        for queue, paths in (await self._reader.entered(run_id)).items():
            stages = stages_of(home, [f"{run_id}/{path}".encode() for path in paths])
            for at in range(0, len(stages), _STEP):
                await self._engine().run_at(queue or home.home, "run_forget", stages[at : at + _STEP])


def _checked(run_id: str) -> bytes:
    return check_run_id(run_id).encode()


def _checked_fields(fields: Collection[str] | None) -> Sequence[str] | None:
    return None if fields is None else check_list("fields", fields, "names")


def _text(value: Any) -> str:
    text: str = value.decode(errors="surrogateescape")
    return text
