"""Tasks as the caller sees them, and calls of them as values."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from leasequeue import telemetry
from leasequeue.durations import Duration, check_bool, moment_ms, to_ms
from leasequeue.errors import InvalidArgument, InvalidCall
from leasequeue.item import Item, check_id
from leasequeue.queue.cancelling import KEEP_SECONDS
from leasequeue.queue.encoding import AddOptions, adding, refuse_options
from leasequeue.queue.plans.building import PlannedCall, QueuePlace, takes_nothing
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.tasks.chains import Chain, OneCall, Partial, Takes
from leasequeue.tasks.fitting import misfit
from leasequeue.tasks.job import Job
from leasequeue.tasks.wire import content_id_of, data_of
from leasequeue.worker.stage_context import FanOut, Next, correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from datetime import datetime

    from leasequeue.queue.plans.building import End, PlanBuilder
    from leasequeue.queue.plans.flow_runs import FlowRun
    from leasequeue.queue.plans.plan import Need
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.tasks.definition import Definition

P = ParamSpec("P")
Rest = ParamSpec("Rest")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class CallOptions:
    """How a task is added; see `Task.options`."""

    id: str | None = None
    content_id: bool = False
    delay: Duration | None = None
    at: datetime | None = None
    correlation: str | None = None
    priority: int | None = None
    group: str | None = None
    tags: Sequence[str] | None = None
    weight: int | None = None
    expires_in: Duration | None = None
    dedupe_for: Duration | None = None
    unique_until_start: str | None = None
    replace: bool | None = None

    @property
    def of_item(self) -> AddOptions:
        """Those of the item, as arguments of `AsyncWorkQueue.add_item`."""
        given = {name: getattr(self, name) for name in AddOptions.__annotations__}
        if isinstance(self.tags, list | set):
            given["tags"] = tuple(self.tags)  # calls with equal options are added together, so it is hashed
        return cast("AddOptions", {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Call(OneCall[R_co]):
    """A call of a task, as a value: the arguments are checked and written. `Task.call` makes it.

    await tasks.add_many([send_mail.call("ann@example.org"), resize.call("cat.jpg")])
    await fetch.call(7).then(check, strict=True).add()
    """

    _definition: Definition
    _arguments: bytes
    _options: CallOptions
    _clock: Callable[[], float]
    #: The argument that takes the result of the part before; None: none does.
    _takes: str | None = None

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._definition.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name, as JSON has them; without those that were left out."""
        found: dict[str, Any] = json.loads(self._arguments)
        return found

    @property
    def queue(self) -> AsyncWorkQueue:
        """The queue to whose items it is added."""
        return self._definition.queue

    @property
    def delay(self) -> Duration:
        """Seconds before it may run; 0 is none."""
        return self._options.delay or 0

    @property
    def at(self) -> datetime | None:
        """Or the time from which it may run; None: see `delay`."""
        return self._options.at

    @property
    def options(self) -> AddOptions:
        """Further options of its item, as `AsyncWorkQueue.add_item` takes them."""
        options, group = self._options.of_item, self._group()
        return options if group is None else {**options, "group": group}

    def item(self) -> Item:
        """Make the item, for a pipeline of your own: `queue.add_item_to_pipeline(pipeline, call.item())`.

        Each one has a new id, unless the options give one. `delay` and
        `options` are not part of it.

        Raises:
            InvalidCall: If the function fans out or chooses successors, which only stages of flow runs do.
        """
        if problem := self._definition.only_stage:
            raise InvalidCall(self.task, problem)
        options = self._options
        at_ms = _first_due_ms(options, self._clock)
        item_id = content_id_of(self.task, self._arguments) if options.content_id else options.id
        correlation = options.correlation or correlation_id.get()
        return Item(data_of(self.task, self._arguments, at_ms, correlation=correlation), item_id)

    # `Never` stands for a function that does not say what it returns: only Any is both. Each overload is
    # narrower than the next.
    @overload
    async def add(self: Call[Never]) -> Job[Any]: ...  # type: ignore[overload-overlap] # as said above
    @overload
    async def add(self: Call[FanOut[T]]) -> FlowRun[list[T]]: ...  # type: ignore[overload-overlap] # as above
    @overload
    async def add(self) -> Job[R_co]: ...

    async def add(self) -> Job[Any] | FlowRun[Any]:
        """Add the task to its queue; if its function fans out, start a flow run of this call alone.

        Returns:
            The job; or the flow run, as `chain().add()` does, which also takes an id and a time to keep it.

        Raises:
            InvalidCall: If the function chooses successors, which only the stages of a `Flow` have; or if it
                fans out, and an option is not one of stages. Nothing was sent.
            QueueClosed, ServerError: As in `AsyncWorkQueue.add_item`.
        """
        if self._definition.fans:
            plain = dataclasses.replace(self._options, correlation=None)
            chain = dataclasses.replace(self, _options=plain).chain()
            return await chain.add(correlation=self._options.correlation)
        item = self.item()
        added = self._add_item(item)
        return await (added if telemetry.active is None else telemetry.adding(self.task, added))

    async def _add_item(self, item: Item) -> Job[R_co]:
        """Add its item; return the job, or that of the call that waits with its key."""
        if self._options.unique_until_start is None:
            created = await self.queue.add_item(item, delay=self.delay, at=self.at, **self.options)
            return self.job(item.id, created=created)
        found, created = await self.queue.add_or_find(item, delay=self.delay, at=self.at, **self.options)
        return self.job(found, created=created)

    async def cancel(self, *, keep: Duration = KEEP_SECONDS) -> bool:
        """Cancel the job of an equal call, which must have an id: by the option `id` or `content_id`.

            await resize.options(content_id=True).call("cat.jpg").cancel()

        Args:
            keep: As in `Job.cancel`.

        Returns:
            False if there is no unfinished job with this id.

        Raises:
            InvalidArgument: If the call has neither option, or `keep` is no duration.
            QueueClosed, ServerError: As in `AsyncWorkQueue.cancel`.
        """
        if self._options.id is None and not self._options.content_id:
            raise InvalidArgument(
                "content_id", self._options.content_id, "a call with an id, by `id` or `content_id`"
            )
        return await self.job(self.item().id).cancel(keep=keep)

    def job(self, item_id: str, *, created: bool | None = None) -> Job[R_co]:
        """Return the job of an item that was made from this call."""
        return _job(self._definition, item_id, created=created)

    def chain(self) -> Chain[R_co]:
        """Return a chain of this call alone: a flow run of one stage, such as one that fans out.

        Raises:
            InvalidCall: As in `then`.
        """
        return Chain((self._as_part(),))

    @property
    def _kind(self) -> tuple[int, int]:
        """What calls of a task with the same options have in common, as long as these exist."""
        return id(self._definition), id(self._options)

    def _group(self) -> str | None:
        """Return the group of its item: the one that its task gives it, or that of its options.

        Calls of one kind may have different ones. Raises InvalidCall as `Definition.group_of` does.
        """
        group = self._definition.group_of(self._arguments if self._takes is None else None)
        return self._options.group if group is None else group

    @property
    def _returns(self) -> Any:
        return self._definition.result_type

    def _as_part(self) -> Self:
        options, task = self._options, self.task
        if options.correlation is not None:
            raise InvalidCall(task, "a stage has the correlation id of its run: give that to `add()`")
        if options.id is not None or options.content_id:
            raise InvalidCall(task, "a stage has the id of its run: leave out `id` and `content_id`")
        if options.dedupe_for is not None or options.replace:
            raise InvalidCall(task, "the id of a stage is new: leave out `dedupe_for` and `replace`")
        if options.unique_until_start is not None or (options.weight or 1) > 1:
            raise InvalidCall(task, "a stage takes neither `weight` nor `unique_until_start`: add a call")
        if options.tags:
            raise InvalidCall(task, "a stage has no tags: find its run by attributes, with `flow_runs.find`")
        if self._definition.returns(Next):
            raise InvalidCall(task, "it returns a Next, and a chain has no choice: use a Flow")
        return self

    def _build(self, builder: PlanBuilder, before: End) -> End:
        return builder.call(self._as_call(), before)

    def _as_call(self) -> PlannedCall:
        definition, options = self._definition, self._options
        of_item = self.options
        delay_ms = to_ms("delay", self.delay, zero=True)
        if options.at is not None:
            delay_ms = max(0, moment_ms("at", options.at) - round(self._clock() * 1000))
        home, queue = definition.home, definition.queue
        place = _place_of(queue)
        return PlannedCall(
            task=self.task,
            runs=home.flow_runs,
            home=place if home is queue else _place_of(home),
            queue=place,
            level=of_item.get("priority", 0),
            group=of_item.get("group"),
            delay_ms=delay_ms,
            has_time=options.at is not None,
            expires_ms=0 if options.expires_in is None else to_ms("expires_in", options.expires_in),
            due_ms=_first_due_ms(options, self._clock),
            write=self._stage_data,
            read=definition.read_output,
        )

    def _stage_data(self, due_ms: int | None, need: Need) -> bytes:
        """Return the data of its item as a stage, whose argument `_takes` takes `need`."""
        if self._takes is None:
            return data_of(self.task, self._arguments, due_ms)
        if takes_nothing(need):  # its parts are known already: it is the result of empty groups
            constants = msgspec.json.decode(self._arguments, type=dict[str, msgspec.Raw])
            return data_of(self.task, msgspec.json.encode({**constants, self._takes: need}), due_ms)
        return data_of(self.task, self._arguments, due_ms, needs={self._takes: need})

    def __repr__(self) -> str:
        return f"<call of {self.task} with {self._arguments.decode():.200}>"


class Task(Generic[P, R_co]):
    """A function that can be added to a queue. `TaskQueue.task` makes it; calling it calls the function.

    Attributes:
        name: Its name, by which workers know it.
    """

    def __init__(
        self,
        definition: Definition,
        clock: Callable[[], float],
        options: CallOptions = CallOptions(),
    ) -> None:
        # A decorator for callables; mypy takes the ParamSpec of a class that is called for none at all.
        functools.update_wrapper(cast("Callable[..., Any]", self), definition.function)
        self._definition = definition
        self._clock = clock
        self._options = options
        self.name = definition.name

    @property
    def definition(self) -> Definition:
        """What was registered; for workers."""
        return self._definition

    @property
    def queue(self) -> AsyncWorkQueue:
        """The queue of its items."""
        return self._definition.queue

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""
        return self._definition.function

    def options(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the name of the attribute
        content_id: bool | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        correlation: str | None = None,
        **of_item: Unpack[AddOptions],
    ) -> Self:
        """Return the task with other options. Those that are None stay as they are.

            await send_mail.options(id="welcome-7", delay=60).add("ann@example.org")

        Args:
            id: The id of the item, 1 to 512 bytes of UTF-8. A second task of an id is not added while the
                first is unfinished.
            content_id: Whether equal calls have equal ids, made from the task's name and the arguments, whose
                dicts and sets are sent sorted.
            delay: Seconds before it may run; 0 is none.
            at: Or the time from which it may run: a `datetime` with a time zone.
            correlation: An id for logs and traces, a string like an id, which the function reads as
                `correlation_id`, and which what it adds has, too; by default that of the code that adds it.
            priority: The level of the item, -9 to 9: calls of a higher level run first.
            group: The group of the item, which may have separate limits.
            tags: At most 20 texts by which `queue.tags` finds it: see `Tags`.
            expires_in: Seconds after which it is discarded, unless a worker has begun with it.
            weight: As how many calls it counts for each rate of its queue and group, at most as the burst.
            dedupe_for: Seconds for which its id stays taken, even if it is done sooner.
            unique_until_start: A key: it is not added while a call with this key waits or is delayed, and was
                not started; the job is the one that waits.
            replace: Whether to replace a call with its id that is waiting or delayed.

        Raises:
            InvalidArgument: If one cannot be used.
            TypeError: If there is no such option.
        """
        known = CallOptions.__dataclass_fields__
        refuse_options(of_item.keys() - known.keys(), "options() takes", known)
        changes: dict[str, Any] = {}
        if id is not None:
            changes["id"] = check_id(id)
        if content_id is not None:
            changes["content_id"] = check_bool("content_id", content_id)
        if delay is not None:
            to_ms("delay", delay, zero=True)
            changes["delay"] = delay
        if at is not None:
            moment_ms("at", at)
            changes["at"] = at
        if correlation is not None:
            changes["correlation"] = check_id(correlation, argument="correlation")
        _check_of_item(self._definition, of_item)
        changes |= {name: value for name, value in of_item.items() if value is not None}
        options = dataclasses.replace(self._options, **changes)
        if options.id is not None and options.content_id:
            raise InvalidArgument("content_id", True, "no id beside it: the id is made from the arguments")
        if options.delay and options.at is not None:
            raise InvalidArgument("delay", options.delay, "a delay or a time, not both")
        return type(self)(self._definition, self._clock, options)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R_co]:
        """Return a call of the task as a value, to be added later.

        Raises:
            InvalidCall: If the arguments do not fit the function.
        """
        ordered = self._options.content_id
        written = self._definition.arguments.encode(args, kwargs, ordered=ordered)
        return Call(self._definition, written, self._options, self._clock)

    def partial(self: Takes[T, Rest, R], /, *args: Rest.args, **kwargs: Rest.kwargs) -> Partial[T, R]:
        """Return a call without its first argument, which is the result of what it follows.

            run = await fetch.call(7).then(group([weigh.partial(), price.partial(currency="EUR")])).add()

        Args:
            args: The arguments after the first.
            kwargs: Further arguments by name.

        Raises:
            InvalidCall: If the function has no positional argument, or the others do not fit it; or as in
                `Call.then`. Its type is compared with that of the result by `then`.
        """
        task = cast("Task[..., R]", self)
        first = task.definition.arguments.first
        call = task._link(args, kwargs, Any)  # noqa: SLF001 - of this file
        return Partial(call, ((task.name, first, task.definition.arguments.types[first]),))

    @overload
    async def add(  # type: ignore[overload-overlap] # as in `Call.add`
        self: Task[P, Never], *args: P.args, **kwargs: P.kwargs
    ) -> Job[Any]: ...
    @overload
    async def add(  # type: ignore[overload-overlap] # as in `Call.add`
        self: Task[P, FanOut[T]], *args: P.args, **kwargs: P.kwargs
    ) -> FlowRun[list[T]]: ...
    @overload
    async def add(self, *args: P.args, **kwargs: P.kwargs) -> Job[R_co]: ...

    async def add(self, *args: P.args, **kwargs: P.kwargs) -> Job[Any] | FlowRun[Any]:
        """Add the task to its queue, for a worker to call the function with these arguments.

        Returns:
            The job. `Job.created` says whether it was added, or was there already under its id. Of a function
            that fans out, a flow run of this call alone: see `Call.add`.

        Raises:
            InvalidCall: If the arguments do not fit the function, or as in `Call.add`. Nothing was sent.
            QueueClosed, ServerError: As in `AsyncWorkQueue.add_item`.
        """
        return await self.call(*args, **kwargs).add()

    def job(self, id: str) -> Job[R_co]:  # noqa: A002 - the name of the attribute
        """Return a job from its id, for example in another request. Nothing is sent.

        Raises:
            InvalidArgument: If `id` cannot be an id.
        """
        return _job(self._definition, id, created=None)

    def _link(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any) -> Call[R_co]:
        """Return a call without its first argument, which takes a value of the type `given`."""
        arguments = self._definition.arguments
        first = arguments.first
        if problem := misfit(first, arguments.types[first], "the result before it", given):
            raise InvalidCall(self.name, problem)
        written = arguments.encode(args, kwargs, filled=(first,))
        return Call(self._definition, written, self._options, self._clock, first)._as_part()  # noqa: SLF001 - of this file

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled by its name, as functions are

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class AsyncTask(Task[P, R_co]):
    """A task whose function is async."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R_co]:
        """Call the function, here and now."""
        called: Coroutine[Any, Any, R_co] = self.function(*args, **kwargs)
        return called


class PlainTask(Task[P, R_co]):
    """A task whose function is a plain one, run in a thread or a process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function, here and now."""
        returned: R_co = self.function(*args, **kwargs)
        return returned


class BatchTask(Task[P, R_co]):
    """A task whose function takes a list: each call gives one item of it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, here and now, with a list."""
        return self.function(*args, **kwargs)


class TaskDecorator(Protocol):
    """Makes a task of a function."""

    @overload
    def __call__(  # type: ignore[overload-overlap] # an async function is also one that returns a coroutine
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...


class BatchDecorator(Protocol):
    """Makes a task of a function that takes a list."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Coroutine[Any, Any, None]], /
    ) -> BatchTask[Concatenate[T, P], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Coroutine[Any, Any, Sequence[R | Exception]]], /
    ) -> BatchTask[Concatenate[T, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], None], /
    ) -> BatchTask[Concatenate[T, P], None]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[list[T], P], Sequence[R | Exception]], /
    ) -> BatchTask[Concatenate[T, P], R]: ...


def options_of(task: Task[..., Any]) -> tuple[CallOptions, int]:
    """Return how calls of a task are added, and when one that is added now may run first; for Spark.

    Returns:
        The options, and the time by the caller's clock, in ms since 1970.
    """
    options = task._options  # noqa: SLF001 - of this file: not for users
    return options, _first_due_ms(options, task._clock)  # noqa: SLF001


def _place_of(queue: AsyncWorkQueue) -> QueuePlace:
    return QueuePlace(queue.url, queue.name, len(queue.shards) if isinstance(queue, ShardedQueue) else 0)


def _check_of_item(definition: Definition, of_item: AddOptions) -> None:
    """Refuse options of the item that cannot be used, or not with the task."""
    adding(**of_item)
    limit, group = definition.limit, of_item.get("group")
    if limit is not None and group is not None:
        raise InvalidArgument("group", group, f"None for a task with limits, whose group is {limit.group!r}")
    if definition.gathers is not None and group is not None:
        raise InvalidArgument("group", group, "None for a task with batch_wait=, which sets it")
    if limit is not None and limit.rate is not None and of_item.get("weight", 1) > 1:
        allowed = "1 for a task with a rate, whose burst is 1: set a rate and a burst of its queue instead"
        raise InvalidArgument("weight", of_item["weight"], allowed)


def _first_due_ms(options: CallOptions, clock: Callable[[], float]) -> int:
    at_ms = round(clock() * 1000) + to_ms("delay", options.delay or 0, zero=True)
    return at_ms if options.at is None else max(at_ms, moment_ms("at", options.at))


def _job(definition: Definition, item_id: str, *, created: bool | None) -> Job[Any]:
    return Job(
        definition.queue,
        definition.name,
        item_id,
        created=created,
        read=definition.read_result,
        keeps_result=definition.settings.keep_result is not None,
        read_chunk=definition.read_chunk,
    )
