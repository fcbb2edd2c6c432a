"""Calls one after the other and side by side: chains and groups, which are started as flow runs."""

# ruff: noqa: SLF001 - steps are parts of each other; their methods are not for users

from __future__ import annotations

import uuid
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    overload,
)

from leasequeue.durations import LONGEST_KEPT_SECONDS, Duration, check_list, to_ms
from leasequeue.errors import InvalidArgument, InvalidCall
from leasequeue.queue.plans.building import End, PlanBuilder, join_of
from leasequeue.queue.plans.flow_runs import FlowRun, lookup_texts
from leasequeue.queue.plans.plan import KEEP_MS, FlowPlan, Join, check_run_id
from leasequeue.tasks.fitting import list_of, misfit, name_of
from leasequeue.worker.stage_context import correlation_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from leasequeue.queue.plans.building import PlannedCall
    from leasequeue.queue.plans.flow_runs import FlowRuns, Output
    from leasequeue.worker.stage_context import FanOut

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)

#: What takes the result before it: the name of a task, its parameter, and the type of that.
Wanted: TypeAlias = "tuple[str, str, Any]"


class Takes(Protocol[T_contra, P, R_co]):
    """A task whose first positional argument takes a value of a type."""

    def call(self, first: T_contra, /, *args: P.args, **kwargs: P.kwargs) -> Step[R_co]:
        """Return a call of the task."""
        ...


class Part(Generic[R_co]):
    """What a group may hold: calls, with all their arguments or without the first. Results are an `R_co`."""


class Step(Part[R_co]):
    """What can begin a chain or be a part of one: a call, a chain or a group. Its result is an `R_co`."""

    @property
    def _returns(self) -> Any:
        """The type of the result."""
        raise NotImplementedError

    def _build(self, builder: PlanBuilder, before: End) -> End:
        """Add the stages of this part to a plan, after what comes before it."""
        raise NotImplementedError

    def _as_part(self) -> Self:
        """Return this, checked.

        Raises:
            InvalidCall: If it is a call that cannot be a stage.
        """
        return self

    def _as_call(self) -> PlannedCall | None:
        return None

    @overload
    def then(
        self: Step[FanOut[T]], task: Takes[list[T], P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Chain[R]: ...
    @overload
    def then(self, task: Takes[R_co, P, R], /, *args: P.args, **kwargs: P.kwargs) -> Chain[R]: ...
    @overload
    def then(self: Step[FanOut[T]], task: Partial[list[T], R], /) -> Chain[R]: ...
    @overload
    def then(self, task: Partial[R_co, R], /) -> Chain[R]: ...
    @overload
    def then(self: Step[None], task: Group[R], /) -> Chain[list[R]]: ...
    @overload
    def then(self, task: Group[R], /, *, drop_result: Literal[True]) -> Chain[list[R]]: ...
    @overload
    def then(self, task: OneCall[R], /) -> Chain[R]: ...

    def then(self, task: Any, /, *args: Any, **kwargs: Any) -> Chain[Any]:
        """Return a chain that continues with a task, to whose first argument the result is passed.

            run = await download.call(url).then(resize, width=200).then(upload).add()

        Of a group, and of a function that returns a `FanOut`, the result is the list of results.

        Args:
            task: The task; `task.options(…)` gives it a delay, a priority and others. Or a call or a chain,
                which begins when this is done, without its result; or a group, with `drop_result=True` if
                there is a result, as it is passed to none of its calls. Or what `Task.partial` makes, and a
                group with such parts: the result is passed to each of them.
            args: Its further arguments.
            kwargs: Its further arguments by name.

        Raises:
            InvalidCall: If the task, or a partial call, has no positional argument, its type is not that of
                the result, or the further arguments do not fit it; if a group follows a result, without
                `drop_result`; or if a call has an id, or chooses successors.
            InvalidArgument: If `task` is none.
        """
        before = self._as_part()
        parts = before._parts if isinstance(before, Chain) else (before,)
        if isinstance(task, Partial):
            if args or kwargs:
                raise InvalidArgument("task", task, "a task, if there are further arguments")
            return Chain((*parts, task._taking(before._returns)))
        if isinstance(task, Step):
            if isinstance(task, Group) and kwargs.pop("drop_result", False) is not True:
                _check_nothing_is_dropped(before._returns)
            if args or kwargs:
                raise InvalidArgument("task", task, "a task, if there are further arguments")
            return Chain((*parts, task._as_part()))
        if (link := getattr(task, "_link", None)) is None:
            raise InvalidArgument("task", task, "a task, or a call, a chain or a group")
        return Chain((*parts, link(args, kwargs, before._returns)))


def _check_nothing_is_dropped(returned: Any) -> None:
    """Refuse a group that follows a result, which Celery would pass to each of its calls."""
    if returned in (None, type(None)):
        return
    raise InvalidCall(
        "group",
        f"its calls have all their arguments, so that the result before it, {name_of(returned)}, would "
        "be dropped. To pass it to one of them, as its first argument, write task.partial(…) and not "
        "task.call(…); to drop it, write .then(group(…), drop_result=True)",
    )


class OneCall(Step[R_co]):
    """A step that follows a result without taking it: a call, or a chain."""


class Partial(Part[R_co], Generic[T_contra, R_co]):
    """Calls that take the result before them as their first argument. `Task.partial` and `group` make it.

    fetch.call(7).then(group([weigh.partial(), pack.partial(box="big").then(label)]))

    It cannot be added, only follow what has a result.
    """

    def __init__(self, step: Step[R_co], wanted: tuple[Wanted, ...]) -> None:
        self._step = step
        self._wanted = wanted

    @overload
    def then(
        self: Partial[T_contra, FanOut[T]], task: Takes[list[T], P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Partial[T_contra, R]: ...
    @overload
    def then(self, task: Takes[R_co, P, R], /, *args: P.args, **kwargs: P.kwargs) -> Partial[T_contra, R]: ...
    @overload
    def then(self, task: Partial[R_co, R] | OneCall[R], /) -> Partial[T_contra, R]: ...

    def then(self, task: Any, /, *args: Any, **kwargs: Any) -> Partial[T_contra, Any]:
        """Return these calls, continued as `Step.then` does."""
        return Partial(self._step.then(task, *args, **kwargs), self._wanted)

    def _taking(self, given: Any) -> Step[R_co]:
        """Return the calls after a result of a type, checked."""
        for task, parameter, kind in self._wanted:
            if problem := misfit(parameter, kind, "the result before it", given):
                raise InvalidCall(task, problem)
        return self._step

    def __repr__(self) -> str:
        return f"<partial {self._step!r}>"


class Flowing(Step[R_co]):
    """What can be started as a flow run."""

    @overload
    async def add(
        self: Flowing[FanOut[T]],
        *,
        id: str | None = None,
        keep: Duration = ...,
        correlation: str | None = None,
        priority: int = 0,
        lookup: Mapping[str, Any] | None = None,
    ) -> FlowRun[list[T]]: ...
    @overload
    async def add(
        self,
        *,
        id: str | None = None,
        keep: Duration = ...,
        correlation: str | None = None,
        priority: int = 0,
        lookup: Mapping[str, Any] | None = None,
    ) -> FlowRun[R_co]: ...

    async def add(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the name of the attribute
        keep: Duration = 86_400,
        correlation: str | None = None,
        priority: int = 0,
        lookup: Mapping[str, Any] | None = None,
    ) -> FlowRun[Any]:
        """Start a flow run: add the first calls to their queues, for workers to continue with the others.

        A run starts as a whole or not at all. Its keys are those of the task queue of its first call; all
        queues must be in the same slot of a cluster.

        Args:
            id: The id of the run, 1 to 200 bytes of UTF-8 without NUL and slash; None: a new one. A second
                run of an id is not started while the first one is kept.
            keep: How long the run and its results are kept when it has ended, in seconds; 0: not at all, or
                for a minute if a caller waits for them.
            correlation: An id for logs and traces, which functions read as `correlation_id`; None: that of
                the code that adds it, if any.
            priority: Is added to the level of each of its items, which stays within -9 to 9.
            lookup: Values by which `queue.flow_runs.find` finds the run; of a list, each of its elements.

        Returns:
            The run. `FlowRun.created` says whether this call has started it.

        Raises:
            InvalidCall: If a call cannot be in its place. Nothing was sent.
            InvalidFlow: If the chain has too many parts. Nothing was sent.
            InvalidArgument: If an argument cannot be used. Nothing was sent.
            QueueClosed, ServerError: As in `AsyncWorkQueue.add_item`. Repeating with the same `id` is safe.
        """
        builder, runs, result, output = self._built()
        plan = builder.plan(
            result,
            keep_ms=to_ms("keep", keep, zero=True, longest=LONGEST_KEPT_SECONDS),
            correlation=correlation_id.get() if correlation is None else correlation,
            priority=priority,
            lookup={name: lookup_texts(value) for name, value in (lookup or {}).items()},
        )
        run_id = uuid.uuid4().hex if id is None else check_run_id(id)
        created = await runs.start(plan, run_id)
        return FlowRun(runs, run_id, output, created=created)

    def plan(self) -> FlowPlan:
        """Return the plan of a run, as `add` stores it.

        Raises:
            InvalidCall, InvalidArgument: As in `add`.
        """
        builder, _, result, _ = self._built()
        return builder.plan(result, keep_ms=KEEP_MS, correlation=None, priority=0, lookup={})

    @overload
    def flow_run(self: Flowing[FanOut[T]], id: str) -> FlowRun[list[T]]: ...
    @overload
    def flow_run(self, id: str) -> FlowRun[R_co]: ...

    def flow_run(self, id: str) -> FlowRun[Any]:  # noqa: A002 - the name of the attribute
        """Return a run of an equal chain from its id, for example in another request. Nothing is sent.

        Raises:
            InvalidArgument: If `id` cannot be an id.
        """
        _, runs, _, output = self._built()
        return FlowRun(runs, check_run_id(id), output, created=None)

    def _built(self) -> tuple[PlanBuilder, FlowRuns, str | None, Output]:
        """Return the stages, the runs of the home queue, the stage of the run's result, and its output."""
        builder = PlanBuilder()
        end = self._build(builder, End())
        if builder.first is None:
            raise InvalidArgument("calls", [], "at least one call")
        runs = builder.first.runs.with_signals("flow run", builder.signals)
        return builder, runs, *builder.result_of(end)


class Chain(Flowing[R_co], OneCall[R_co]):
    """Calls one after the other: each takes the result of the one before. `Call.then` makes it.

    run = await fetch.call(7).then(check, strict=True).then(store).add()
    await run.result(timeout=60)
    """

    def __init__(self, parts: tuple[Step[Any], ...]) -> None:
        self._parts = parts

    @property
    def _returns(self) -> Any:
        return self._parts[-1]._returns

    def _build(self, builder: PlanBuilder, before: End) -> End:
        for part in self._parts:
            before = part._build(builder, before)
        return before

    def __repr__(self) -> str:
        return f"<chain of {len(self._parts)} parts>"


class Group(Flowing[list[R]]):
    """Calls side by side, whose results are a list in their order. `group` makes it."""

    def __init__(self, parts: tuple[Step[Any], ...], join: str) -> None:
        self._parts = parts
        self._join = join

    @property
    def _returns(self) -> Any:
        return list_of(part._returns for part in self._parts)

    def _build(self, builder: PlanBuilder, before: End) -> End:
        calls = [call for part in self._parts if (call := part._as_call()) is not None]
        if self._parts and len(calls) == len(self._parts):
            for call in calls:
                builder.expect(call, before)
            if not any(call.expires_ms for call in calls):
                return builder.children(calls, self._join, before)
        return builder.group([partial(part._build, builder) for part in self._parts], self._join, before)

    def __repr__(self) -> str:
        return f"<group of {len(self._parts)} parts, join {self._join!r}>"


# An empty list may be of any of these.
@overload
def group(calls: Iterable[Partial[T, R]], *, join: Join = "all") -> Partial[T, list[R]]: ...
@overload
def group(  # type: ignore[overload-overlap] # as said above
    calls: Iterable[Step[FanOut[T]]], *, join: Join = "all"
) -> Group[list[T]]: ...
@overload
def group(  # type: ignore[overload-overlap] # as said above
    calls: Iterable[Step[R]], *, join: Join = "all"
) -> Group[R]: ...
@overload
def group(calls: Iterable[Part[R]], *, join: Join = "all") -> Partial[Any, list[R]]: ...


def group(calls: Iterable[Any], *, join: Join = "all") -> Group[Any] | Partial[Any, list[Any]]:
    """Return a group of calls, chains or groups, which run side by side.

        run = await group([resize.call(path) for path in paths]).then(pack, name="all.zip").add()

    The result is the list of their results, in their order.

    Args:
        calls: The calls; 10,000 or more, or up to 2,000 calls in chains and groups. With partial calls among
            them, the group follows a result, which each of these takes; the others do not.
        join: What to do if one fails, or is cancelled. `"all"`: nothing follows, and the run fails when the
            others are done. `"settled"`: the list has the results of those that succeeded. `"fail"`: the run
            fails at once; `"fail_fast"`: and the others are cancelled. `AtLeast(n)`: as soon as `n`
            succeeded, the others are cancelled, and the list has those that succeeded; if `n` cannot, the
            group fails.

    Raises:
        InvalidArgument: If one is no call, chain or group, or `join` is none of these, or wants more
            than there are.
    """
    steps = check_list("calls", calls, "calls, chains or groups")
    wanted = [each for one in steps if isinstance(one, Partial) for each in one._wanted]
    steps = [one._step if isinstance(one, Partial) else one for one in steps]
    for one in steps:
        if not isinstance(one, Step):
            raise InvalidArgument("calls", one, "calls, chains or groups: task.call(…)")
    made: Group[Any] = Group(tuple(one._as_part() for one in steps), join_of(join, len(steps)))
    return Partial(made, tuple(dict.fromkeys(wanted))) if wanted else made
