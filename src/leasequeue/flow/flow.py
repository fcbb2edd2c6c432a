"""A flow: its stages, what each takes, and how a run of it is started."""

# ruff: noqa: SLF001 - flows may be stages of each other; their methods for that are not for users

from __future__ import annotations

import dataclasses
import inspect
import time
import uuid
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

import msgspec

from leasequeue.durations import LONGEST_KEPT_SECONDS, Duration, moment_ms, seconds, to_ms
from leasequeue.errors import InvalidArgument, InvalidFlow
from leasequeue.flow.inputs import FlowAttributes, FlowInputs
from leasequeue.flow.stage import (
    FlowDeclaration,
    HandOverSettings,
    SignalSettings,
    Stage,
    StageSettings,
    SubFlowSettings,
)
from leasequeue.flow.sub_flows import waiting_for
from leasequeue.item import codec
from leasequeue.queue.encoding import refuse_options
from leasequeue.queue.plans.building import PlanBuilder
from leasequeue.queue.plans.diagram import Box, draw, joined, shape_of, waits_for
from leasequeue.queue.plans.flow_runs import FlowRun, One
from leasequeue.queue.plans.plan import (
    FlowPlan,
    StagePlan,
    check_run_id,
    check_stage_name,
    no_stage,
    sub_run_id,
)
from leasequeue.queue.plans.signals import NOT_GIVEN
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.tasks.definition import Definition, TaskSettings
from leasequeue.tasks.fitting import accepts_none, fits, name_of
from leasequeue.tasks.signals import SignalPlan
from leasequeue.tasks.task import AsyncTask
from leasequeue.tasks.wire import data_of
from leasequeue.worker.stage_context import correlation_id, current_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import typing_extensions

    from leasequeue.flow.inputs import Input
    from leasequeue.queue.plans.flow_runs import FlowRuns
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.tasks.queue import TaskQueue
    from leasequeue.tasks.task import Task
    from leasequeue.worker.dispatch import Dispatcher
    from leasequeue.worker.retry import RetryPolicy
    from leasequeue.worker.stage_context import FanOut, Next

    Result = typing_extensions.TypeVar("Result", default=Any)
else:
    Result = TypeVar("Result")  # the default is for type checkers; Python has it from 3.13
R = TypeVar("R")

#: How long a run that was started by a hand-over is kept, at least: a day, in ms.
HANDED_OVER_MS = 86_400_000
#: How deep flows may be in each other.
MAX_DEPTH = 8


class Flow(Generic[Result]):
    """Stages of work that follow each other: calls of tasks, or items of queues with their handlers.

        attributes = {"user_id": int, "guilds": list[int]}
        access = Flow("access", tasks, attributes=attributes, lookup=["user_id"], returns=bool)

        check = access.stage(check_access)                     # takes the attributes, by name
        member = access.stage(update_membership, after=check)  # takes what check_access returned, by name
        access.stage(finish, after=member, retry=RetryPolicy(attempts=10), rate="10/s")

        run = await access.start(user_id=62, guilds=[1985])
        await run.result(timeout=60)

    A parameter of a stage's function takes the attribute of its name, or the result of the stage of its name;
    `takes` and `args` say otherwise. The types of both are compared when the stage is declared.

    The server opens the next stage in the same step in which one is finished: no process waits or polls. Each
    run carries its plan, so that a new version of the program does not change the runs that have begun.

    Args:
        name: Its name, 1 to 100 bytes of UTF-8, under which runs are found.
        tasks: The task queue on whose queue the state of runs is kept. Other queues of a flow are on the same
            server, and on a cluster in the same slot. With shards, each run is in the shard of its id, and
            there are no other queues.
        attributes: The input of a run: names, as those of parameters, with their types.
        lookup: Attributes by which `runs.find` finds runs; of an array, by each of its elements.
        keep: How long a finished run is kept, in seconds; 0: not at all. Unfinished ones are kept until they
            are finished.
        returns: The type of the result of a run, so that type checkers know that of `run.result()`. It is
            compared with what the stage with the result returns. None: any.

    Attributes:
        name: Its name.
        tasks: The task queue.

    Raises:
        InvalidFlow: If the name, or that or the type of an attribute, cannot be used.
        UnknownAttribute: If one of `lookup` is not among the attributes.
        InvalidArgument: If another argument cannot be used.
    """

    def __init__(
        self,
        name: str,
        tasks: TaskQueue,
        *,
        attributes: Mapping[str, Any] | None = None,
        lookup: Sequence[str] = (),
        keep: Duration = 86_400,
        returns: type[Result] | None = None,
    ) -> None:
        try:
            self.name = check_stage_name(name)
        except InvalidArgument as error:
            raise InvalidFlow(str(name), f"its name is to be {error.allowed}") from error
        self.tasks = tasks
        self._attributes = FlowAttributes(name, attributes or {}, lookup)
        self._keep_ms = to_ms("keep", keep, zero=True, longest=LONGEST_KEPT_SECONDS)
        self._stages: dict[str, Stage[Any]] = {}
        #: The same as they are planned, for their order.
        self._order: dict[str, StagePlan] = {}
        self._returns = returns
        self._result: str | None = None
        #: The stages that start runs of other flows.
        self._hand_overs: list[str] = []
        #: The flows for whose runs stages wait, by the names of the stages.
        self._sub_flows: dict[str, Flow[Any]] = {}
        #: What the parameters of all stages take; None: it is to be checked, as a stage is new.
        self._taken: dict[str, dict[str, Input]] | None = None
        #: The stages in a plan, and the names of their queues.
        self._planned: tuple[tuple[str, ...], Sequence[StagePlan]] | None = None

    @property
    def stages(self) -> tuple[Stage[Any], ...]:
        """The stages, in the order in which they were declared."""
        return tuple(self._stages.values())

    @property
    def runs(self) -> FlowRuns:
        """Its runs, among those of its queue: see `FlowRuns`."""
        return self._with_signals(self.tasks.queue.flow_runs.of_flow(self.name, self._attributes.sought))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes, each with its type."""
        return dict(self._attributes.types)

    @overload
    def stage(self, task: Task[..., FanOut[R]], /, **settings: Unpack[StageSettings]) -> Stage[list[R]]: ...
    @overload
    def stage(self, task: Task[..., Next[R]], /, **settings: Unpack[StageSettings]) -> Stage[R]: ...
    @overload
    def stage(self, task: Task[..., R], /, **settings: Unpack[StageSettings]) -> Stage[R]: ...
    @overload
    def stage(self, task: str, /, **settings: Unpack[StageSettings]) -> Stage[Any]: ...
    @overload
    def stage(self, task: Flow[R], /, **settings: Unpack[SubFlowSettings]) -> Stage[R]: ...

    def stage(self, task: Task[..., Any] | str | Flow[Any], /, **settings: Any) -> Stage[Any]:
        """Declare a stage: a call of a task, an item of a queue with its handler, or a run of another flow.

            access.stage(finish, after=[member, rewards], join="settled", takes={"given": rewards})
            access.stage("render", queue=videos, takes={"user": "user_id"}, foreign=True)
            access.stage(rewards, after=member, takes={"guild": "guild_id"}, timeout=3600)

        With `retry`, `timeout`, `lease_time`, `concurrency`, `rate` or `queue`, the call is of a task of its
        own, `<flow>.<stage>`, with the same function: workers need this program, and the limits are those of
        this stage. Without them it is a call of the task like any other.

        A flow that is a stage takes its attributes as parameters are taken. A run of it is started, with the
        id `<run>~~<stage>`, the correlation id and the priority of the run; no worker and no lease waits for
        it. The step that ends it ends the stage: with its result, failed with its error, or cancelled. It is
        cancelled, retried and deleted with the run of this flow.

        Args:
            task: The task; or the name of the stage, with `queue`: then the data of its item is a JSON object
                of what `args` and `takes` name, and the results of other stages among them are given by
                `current_stage().inputs`. Or another flow on the same queue, whose stages are declared.
            settings: See `StageSettings`; with another flow `SubFlowSettings`.

        Raises:
            InvalidFlow: If the name is taken, a parameter takes nothing or something that does not fit, or
                `choose` does not fit what the function returns. The text names both types. If the other flow
                is on another queue, has this one as a stage, or its result is that of children.
            InvalidTask: If the task that is made of it cannot be registered.
            InvalidArgument: If another setting cannot be used.
        """
        is_flow = isinstance(task, Flow)
        known = (SubFlowSettings if is_flow else StageSettings).__annotations__
        refuse_options(settings.keys() - known.keys(), "stage() takes", known)
        if isinstance(task, Flow):
            return self._declare_flow(task, settings)
        return self._declare(task, settings)

    def _declare(self, task: Task[..., Any] | str, settings: Any, sub_flow: str = "") -> Stage[Any]:
        """Declare a stage that calls a task."""
        declaration = FlowDeclaration(self.name, self.tasks, self._stages, task, settings, sub_flow)
        return self._declared(declaration.stage(), declaration, result=bool(settings.get("result")))

    @overload
    def signal(
        self, name: str, /, *, type: type[R], otherwise: None, **settings: Unpack[SignalSettings]
    ) -> Stage[R | None]: ...
    @overload
    def signal(
        self, name: str, /, *, type: type[R], otherwise: R = ..., **settings: Unpack[SignalSettings]
    ) -> Stage[R]: ...
    @overload
    def signal(
        self, name: str, /, *, type: Any = ..., otherwise: Any = ..., **settings: Unpack[SignalSettings]
    ) -> Stage[Any]: ...

    def signal(
        self,
        name: str,
        /,
        *,
        type: Any = Any,  # noqa: A002 - reads best beside the name
        otherwise: Any = NOT_GIVEN,
        **settings: Unpack[SignalSettings],
    ) -> Stage[Any]:
        """Declare a stage that waits for a signal, whose value the stages after it take.

            approval = requests.signal("approval", type=Approval, after=asked, within=86_400, otherwise=None)

            await run.signal("approval", by="ann")  # in any process: `requests.flow_run(id)` is the run

        While it waits, it occupies neither a worker nor a lease: its item is scheduled, and due when the time
        is over. A signal may be sent before the stage waits, and counts once. The server's clock decides
        whether it comes in time; if not, the next worker that leases the item ends the stage.

        Args:
            name: The name of the signal and of the stage, 1 to 100 bytes of UTF-8.
            type: The type of its value. That, or its members by name, are the arguments of `FlowRun.signal`.
            otherwise: What the stage gives if no signal comes in time; left out: it fails. With None, the
                stages after it take a value or None.
            settings: See `SignalSettings`.

        Raises:
            InvalidFlow: As in `stage`.
            InvalidArgument: If the type cannot be read from JSON, `otherwise` is not of it or has no
                `within`, or another setting cannot be used.
        """
        known = SignalSettings.__annotations__
        refuse_options(settings.keys() - known.keys(), "signal() takes", ("type", "otherwise", *known))
        plan = SignalPlan.declared(name, type, settings.pop("within", None), otherwise)
        given: StageSettings = {**settings, "queue": self.tasks.queue}  # type: ignore[typeddict-item] # without within
        declaration = FlowDeclaration(self.name, self.tasks, self._stages, name, given)
        made = dataclasses.replace(
            declaration.stage(), signal=plan, tasks=self.tasks, output=plan.output, delay_ms=plan.within_ms
        )
        self.tasks._has_signals = True
        return self._declared(made, declaration, result=bool(settings.get("result")))

    def _declared(self, made: Stage[Any], declaration: FlowDeclaration, *, result: bool) -> Stage[Any]:
        """Add a stage to the graph."""
        self._check_name(made)
        order = {**self._order, made.name: made.planned()}
        self._inputs({**self._stages, made.name: made}, order).of(made, final=False)
        if result and self._result is not None:
            raise self._error(
                f"its result is that of stage {self._result!r}, and not that of {made.name!r}, too"
            )
        made = declaration.with_own_task(made)  # which registers it, and is the last that may fail
        self._stages[made.name], self._order = made, order
        self.tasks._declare_stage(lambda: made.queue, foreign=made.foreign)
        self._taken = self._planned = None
        if result:
            self._result = made.name
        return made

    def _declare_flow(self, other: Flow[Any], settings: dict[str, Any]) -> Stage[Any]:
        """Declare a stage that starts a run of another flow, and waits for it."""
        name = check_stage_name(settings.get("name") or other.name)
        home, there = self.tasks.queue, other.tasks.queue
        if (home.name, home.url) != (there.name, there.url):
            raise self._error(
                f"stage {name!r}: the flow {other.name!r} is on the queue {there.name!r}, and this one on "
                f"{home.name!r}: declare both on one task queue, whose tasks may be on others; or see "
                "Flow.then_start, which does not wait"
            )
        if other._has(self):
            raise self._error(f"stage {name!r}: the flow {other.name!r} is this one, or has it as a stage")
        row = [self.name, *other._nested()]
        if len(row) > MAX_DEPTH:
            shown = " → ".join(row)
            raise self._error(f"flows are in each other {MAX_DEPTH} deep at most, and these deeper: {shown}")
        other.check()
        timeout = settings.get("timeout")
        function = waiting_for(
            partial(other._start, keep_ms=other._keep_ms),
            lambda: other.tasks.queue.flow_runs,
            None if timeout is None else seconds("timeout", timeout, zero=False),
        )
        task = _task_for(self.tasks.queue, name, other, function, other._output(name))
        own = {one: value for one, value in settings.items() if one != "timeout"}
        made = self._declare(task, {**own, "name": name, "queue": self.tasks.queue}, other.name)
        self._sub_flows[made.name] = other
        return made

    def _output(self, stage: str = "") -> Any:
        """Return the type of the result of a run. `stage`: that of another flow which takes it."""
        name = self._result_stage()
        if name is None:
            return None
        if stage and self._stages[name].fans:
            raise self._error(
                f"its result is that of stage {name!r}, which fans out, and it is to be that of stage "
                f"{stage!r} of another flow: let a stage after {name!r} take the list"
            )
        return self._stages[name].output if self._returns is None else self._returns

    def then_start(
        self, other: Flow, /, *, name: str | None = None, **settings: Unpack[HandOverSettings]
    ) -> Stage[str]:
        """Declare a stage that starts a run of another flow, also in another slot or on another server.

            shipping = orders.then_start(deliver, after=paid, takes={"address": paid.member("address")})

        The attributes of the other flow are taken as parameters are. Its run has the id `<run>.<stage>` and
        the same correlation id; the result of the stage is this id. It is a hand-over in two phases: the run
        of the other flow is started, then the stage is finished. A worker that dies between them starts a run
        that is there already, so there is one, as long as that is kept: at least a day after it has ended,
        whatever `keep` says.

        Args:
            other: The other flow.
            name: The name of the stage; None: `start-<other flow>`.
            settings: `after`, `join`, `takes`, `args`, `retry`, `priority` and `delay`, as for `stage`.

        Raises:
            InvalidFlow, InvalidArgument: As in `stage`.
        """
        stage = check_stage_name(f"start-{other.name}" if name is None else name)
        task = _hand_over(self.tasks.queue, stage, other)
        # With a queue, it becomes a separate task.
        made = self.stage(task, name=stage, queue=self.tasks.queue, **settings)
        self._hand_overs.append(made.name)
        return made

    def check(self) -> None:
        """Check the whole graph: that each name is that of a stage, that there is no loop, and all types.

        `start` and a worker with this flow do it.

        Raises:
            InvalidFlow: If a run could not start, or never end.
        """
        self._taken = self._check()

    async def start(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the name of the attribute
        correlation: str | None = None,
        priority: int = 0,
        **attributes: Any,
    ) -> FlowRun[Result]:
        """Start a run. It starts as a whole or not at all.

            run = await access.start(user_id=62, guilds=[1985], correlation=request_id)

        Args:
            id: The id of the run, 1 to 200 bytes of UTF-8 without `/`; None makes a random one. A second run
                of an id is not started while there is the first.
            correlation: What is carried through all stages: in logs, traces and `correlation_id`; None:
                that of the code that starts it, if any.
            priority: Is added to the priority of each stage; the sum is between -9 and 9.
            attributes: The attributes of the run. One whose type has None may be left out.

        Returns:
            The run. `FlowRun.created` says whether it was started, or was there already under its id.

        Raises:
            InvalidFlow: As in `check`. Nothing was sent.
            UnknownAttribute: If an attribute is not declared. Nothing was sent.
            InvalidArgument: If an attribute is missing or not of its type, or another argument is invalid.
            QueueClosed, ServerError: As in `AsyncWorkQueue.add_item`.
        """
        return await self._start(attributes, self._keep_ms, id=id, correlation=correlation, priority=priority)

    def flow_run(self, id: str) -> FlowRun[Result]:  # noqa: A002 - the name of the attribute
        """Return a run from its id, for example in another request. Nothing is sent.

        Raises:
            InvalidArgument: If `id` cannot be that of a run.
        """
        return self._run_of(check_run_id(id), created=None)

    def mermaid(self) -> str:
        """Return the flow as a Mermaid diagram: a box for each stage, with its task, queue and join.

        Raises:
            InvalidFlow: As in `check`.
        """
        self.check()
        home = self.tasks.queue.name
        return draw(
            {
                one.name: Box(
                    lines=[
                        one.name,
                        *_called(one),
                        *([one.queue] if one.queue != home else []),
                        *joined(one.join, len(one.after)),
                        *waits_for(self._order[one.name]),
                    ],
                    after=one.after,
                    shape=shape_of(
                        fans=one.fans,
                        chooses=one.chooses,
                        foreign=one.foreign,
                        signal=one.signal is not None,
                        is_flow=bool(one.sub_flow),
                    ),
                )
                for one in self._stages.values()
            }
        )

    def consumers(self, *, retry: RetryPolicy, lease_time: float) -> Sequence[Dispatcher]:
        """Check the flow, and return what a worker needs to run the tasks of its task queue.

        A `Worker` calls it, so that `Worker(access)` serves the flow, and all other tasks of the task queue.

        Args:
            retry: The worker's policy, for tasks without one.
            lease_time: The worker's lease time, in seconds, for tasks without one.

        Raises:
            InvalidFlow: As in `check`.
        """
        self.check()
        found = self.tasks.consumers(retry=retry, lease_time=lease_time)
        if isinstance(self.tasks.queue, ShardedQueue):
            return found  # a run adds to its own shard
        queues = sorted(self._queues())
        for one in found:
            one.adds_to = queues
        return found

    def only(self, *stages: Stage[Any] | str) -> FlowPart:
        """Return what a worker takes to serve the queues of some stages only.

            Worker(access.only("rewards", "finish"))

        The worker leases all items of these queues, so a stage that is to have separate workers has a
        separate queue: see `queue` of `StageSettings`.

        Raises:
            InvalidFlow: If there is no stage of a name.
        """
        names = [one.name if isinstance(one, Stage) else one for one in stages]
        for name in names:
            if name not in self._stages:
                raise self._error(f"there is no stage {name!r} to serve")
        return FlowPart(self, names)

    def _is_unchecked(self) -> bool:
        """Return whether it, or a flow in it, was not checked since its last stage was declared."""
        return self._taken is None or any(one._is_unchecked() for one in self._sub_flows.values())

    def _has(self, other: Flow[Any]) -> bool:
        """Return whether it is another flow, or has it as a stage, of itself or of one of its stages."""
        return self is other or any(one._has(other) for one in self._sub_flows.values())

    def _nested(self) -> list[str]:
        """Return the names of the longest row of flows that are in each other, beginning with this one."""
        return [self.name, *max((one._nested() for one in self._sub_flows.values()), key=len, default=[])]

    def _queues(self) -> set[str]:
        """Return the names of the queues of its stages, and of those of flows among them."""
        own = {self.tasks.queue.name, *(stage.queue for stage in self.stages if stage.queue)}
        return own.union(*(other._queues() for other in self._sub_flows.values()))

    def _check_ids(self, run_id: str) -> None:
        """Check the ids of the runs that a run starts."""
        for stage in self._hand_overs:
            check_run_id(f"{run_id}.{stage}")
        for stage, other in self._sub_flows.items():
            other._check_ids(check_run_id(sub_run_id(run_id, stage)))

    async def _start(
        self,
        attributes: Mapping[str, Any],
        keep_ms: int,
        *,
        id: str | None,  # noqa: A002 - as in `start`
        correlation: str | None,
        priority: int,
        parent: bytes = b"",
    ) -> FlowRun[Result]:
        run_id = uuid.uuid4().hex if id is None else check_run_id(id)
        self._check_ids(run_id)
        for one in self._stages.values():
            if isinstance(one.at, str) and isinstance(attributes.get(one.at), datetime):
                moment_ms(one.at, attributes[one.at])  # which needs a zone
        plan = self._plan(
            self._attributes.encode(attributes),
            run_id,
            keep_ms=keep_ms,
            correlation=correlation_id.get() if correlation is None else correlation,
            priority=priority,
        )
        plan = dataclasses.replace(plan, parent=parent)
        created = await self.tasks.queue.flow_runs.start(plan, run_id)
        return self._run_of(run_id, created=created)

    def _plan(
        self,
        written: Mapping[str, bytes],
        run_id: str,
        *,
        keep_ms: int,
        correlation: str | None = None,
        priority: int = 0,
    ) -> FlowPlan:
        """Return the plan of a run, checked, given its attributes in JSON."""
        if self._taken is None or self._is_unchecked():  # the first is for type checkers
            self._taken = self._check()
        stages = (
            one
            if stage.task is not None or stage.signal is not None
            else dataclasses.replace(one, data=self._own_data(stage, written, run_id))
            for stage, one in zip(self._stages.values(), self._stage_plans(self._taken), strict=True)
        )
        return PlanBuilder(stages, self.name).plan(
            self._result_stage(),
            keep_ms=keep_ms,
            correlation=correlation,
            priority=priority,
            lookup=self._attributes.lookups(written) if written else {},
            attributes=written,
        )

    def _stage_plans(self, taken: Mapping[str, Mapping[str, Input]]) -> Sequence[StagePlan]:
        """Return the stages as they are in each run; the data of those without a task is to be filled in."""
        stages = self._stages.values()
        queues = tuple(stage.queue for stage in stages)  # which a test may replace for a while
        if self._planned is None or self._planned[0] != queues:
            plans = (stage.planned(_task_data(stage, taken[stage.name])) for stage in stages)
            self._planned = queues, FlowPlan(tuple(plans)).linked().stages
        return self._planned[1]

    def _check(self) -> dict[str, dict[str, Input]]:
        plan = FlowPlan(tuple(self._order.values()), result=self._result_stage(), flow=self.name)
        plan.check()
        for stage, one in zip(self._stages.values(), plan.linked().stages, strict=True):
            self._check_choices(stage, one.then)
        if self._returns is not None:
            self._check_result(plan.result)
        for name, other in self._sub_flows.items():
            other.check()
            if other._output(name) != self._stages[name].output:
                raise self._error(
                    f"stage {name!r}: the flow {other.name!r} has another result than when this stage was "
                    "declared: declare all stages of that flow first"
                )
        inputs = self._inputs(self._stages, self._order)
        return {stage.name: inputs.of(stage, final=True) for stage in self._stages.values()}

    def _inputs(self, stages: Mapping[str, Stage[Any]], order: Mapping[str, StagePlan]) -> FlowInputs:
        return FlowInputs(self.name, self._attributes.types, stages, order)

    def _own_data(self, stage: Stage[Any], written: Mapping[str, bytes], run_id: str) -> bytes:
        """Return the data of a stage without a task: what is known when the run starts."""
        taken = {} if self._taken is None else self._taken[stage.name]
        known = {
            name: msgspec.Raw(written[one.need[1:]])
            for name, one in taken.items()
            if isinstance(one.need, str) and one.need[0] == "@" and one.need[1:] in written
        }
        meta = {
            "flow": self.name,
            "run": run_id,
            "stage": stage.name,
            "needs": {name: one.need for name, one in taken.items() if name not in known},
        }
        return codec.encode({**stage.constants, **known, "meta": meta})

    def _result_stage(self) -> str | None:
        if self._result is not None:
            return self._result
        followed = {name for stage in self._stages.values() for name in stage.after}
        ends = [name for name in self._stages if name not in followed]
        return ends[0] if len(ends) == 1 else None

    def _run_of(self, run_id: str, *, created: bool | None) -> FlowRun[Result]:
        name = self._result_stage()
        task, signal = (self._stages[name].task, self._stages[name].signal) if name else (None, None)
        read = codec.decoder(Any) if task is None else task.definition.read_output
        output = One(name or "", read if signal is None else signal.read)
        return FlowRun(self._with_signals(self.tasks.queue.flow_runs), run_id, output, created=created)

    def _with_signals(self, runs: FlowRuns) -> FlowRuns:
        signals = {one.name: one.signal.write for one in self._stages.values() if one.signal is not None}
        return runs.with_signals(f"flow {self.name!r}", signals)

    def _check_result(self, name: str | None) -> None:
        if name is None:
            raise self._error("it has a type, returns=, and none of its stages: give one result=True")
        if not fits(self._stages[name].output, self._returns):
            returned, wanted = name_of(self._stages[name].output), name_of(self._returns)
            raise self._error(
                f"its result is that of stage {name!r}, {returned}, and not {wanted}, as returns= says"
            )

    def _check_choices(self, stage: Stage[Any], followers: Sequence[str]) -> None:
        """Compare the names among which a stage says that it chooses with those that follow it."""
        if stage.choices is None:
            return
        for name in stage.choices:
            if name not in followers:
                problem = "it does not follow it" if name in self._stages else no_stage(name, followers)
                raise self._error(f"stage {stage.name!r} chooses {name!r}: {problem}")
        for name in followers:
            if name not in stage.choices:
                raise self._error(
                    f"stage {name!r} follows {stage.name!r}, which never chooses it: name it in choose="
                )

    def _check_name(self, stage: Stage[Any]) -> None:
        if stage.name in self._stages:
            raise self._error(
                f"two stages have the name {stage.name!r}: give one of them another name, name=…"
            )
        if stage.name in self._attributes.types:
            raise self._error(
                f"stage {stage.name!r} has the name of an attribute: give it another name, name=…"
            )

    def _error(self, problem: str) -> InvalidFlow:
        return InvalidFlow(self.name, problem)

    def __repr__(self) -> str:
        return f"<flow {self.name!r} with {len(self._stages)} stages>"


def _called(stage: Stage[Any]) -> list[str]:
    """Return what a diagram says of what a stage calls, if that is not its name."""
    if stage.sub_flow:
        return [f"flow {stage.sub_flow}"]
    return [stage.task.name] if stage.task is not None and stage.task.name != stage.name else []


def _task_data(stage: Stage[Any], taken: Mapping[str, Input]) -> bytes:
    """Return the data of a stage that calls a task; empty: it has no task."""
    if stage.signal is not None:
        return stage.signal.data
    if stage.task is None:
        return b""
    needs = {name: one.need for name, one in taken.items()}
    return data_of(stage.task.name, stage.written, None, needs=needs)


def _task_for(
    queue: AsyncWorkQueue, name: str, other: Flow, function: Callable[..., Any], returns: Any
) -> AsyncTask[..., Any]:
    """Return a task, not registered, whose parameters are the attributes of another flow."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            name, keyword, annotation=kind, default=None if accepts_none(kind) else inspect.Parameter.empty
        )
        for name, kind in other.attributes.items()
    ]
    signature = inspect.Signature(parameters, return_annotation=returns)
    function.__signature__ = signature  # type: ignore[attr-defined] # read by inspect.signature
    return AsyncTask(Definition(name, function, queue, TaskSettings()), time.time)


def _hand_over(queue: AsyncWorkQueue, name: str, other: Flow) -> AsyncTask[..., str]:
    """Return a task, not registered, that starts a run of another flow, and returns its id.

    Two runs in different slots cannot change in one step. So the hand-over has two phases, of which the first
    may be repeated: the run of the other flow is started under an id made from this run and stage, and
    then the stage is finished. Whatever happens between them, the stage is run again and starts what is there
    already.
    """

    async def start_other(**given: Any) -> str:
        stage = current_stage()
        run_id = f"{stage.run}.{stage.path}"
        await other._start(
            given,
            max(other._keep_ms, HANDED_OVER_MS),
            id=run_id,
            correlation=stage.correlation,
            priority=0,
        )
        return run_id

    return _task_for(queue, name, other, start_other, str)


class FlowPart:
    """The queues of some stages of a flow, for a worker. `Flow.only` makes it."""

    def __init__(self, flow: Flow, stages: Sequence[str]) -> None:
        self._flow = flow
        self._stages = stages

    def consumers(self, *, retry: RetryPolicy, lease_time: float) -> Sequence[Dispatcher]:
        """Return what a worker needs to run the tasks on these queues; see `Flow.consumers`."""
        flow = self._flow
        wanted = {stage.queue for stage in flow.stages if stage.name in self._stages}
        return [one for one in flow.consumers(retry=retry, lease_time=lease_time) if one.queue.name in wanted]
