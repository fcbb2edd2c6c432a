"""What is known of a task: its function, arguments and result, and how a worker is to run it."""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from inspect import Signature
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from leasequeue.durations import check_int, to_ms
from leasequeue.errors import InvalidArgument, InvalidCall, InvalidTask
from leasequeue.item import codec
from leasequeue.queue.encoding import MAX_GATHERED, check_group
from leasequeue.queue.limits import DeclaredLimit
from leasequeue.queue.schedules import Declaration
from leasequeue.queue.shards.opening import layout_of
from leasequeue.queue.streams import KEEP_STREAM_SECONDS, MAX_STREAM_BYTES, check_stream
from leasequeue.tasks.arguments import Arguments
from leasequeue.tasks.fitting import fits, list_of, name_of
from leasequeue.tasks.wire import data_of
from leasequeue.worker.handler import check_run_in, signature_of
from leasequeue.worker.payload import Emission
from leasequeue.worker.stage_context import FanOut, Next

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.durations import Duration, Size
    from leasequeue.queue.cron import Timing
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.handler import RunIn
    from leasequeue.worker.retry import RetryPolicy

#: What the groups begin with in which calls gather.
BATCH = "batch:"


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """How a worker runs a task. The attributes are those of `Worker.handler`.

    Attributes:
        batch_wait: How long the first call of a batch waits for others; None: it does not.
        batch_by: The field by which calls are in a batch together; None: all are.
        timing: When a call without arguments is added, again and again; None: never.
        concurrency: How many of its calls may be leased at once; None: any number.
        rate: How many may be leased in a time; None: any number.
        streams: The type of the chunks that its runs emit; None: they emit none.
        keep_stream: How long these are kept after its end.
        max_stream: How many bytes of them are kept.
    """

    run_in: RunIn | None = None
    batch: int | None = None
    batch_wait: Duration | None = None
    batch_by: str | None = None
    weight: float = 1.0
    retry: RetryPolicy | None = None
    timeout: Duration | None = None
    lease_time: Duration | None = None
    keep_result: Duration | None = 3600
    keep_logs: Size | None = None
    timing: Timing | None = None
    concurrency: int | None = None
    rate: str | None = None
    streams: Any = None
    keep_stream: Duration = KEEP_STREAM_SECONDS
    max_stream: int = MAX_STREAM_BYTES


class Definition:
    """A task as it was registered.

    Attributes:
        home: The queue of the task queue, whose keys hold the flow runs that begin with the task.
        limit: The limits of its calls, which are those of a group of their own; None: it has none.
        gathers: What the groups begin with in which its calls gather; None: they do not.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], queue: AsyncWorkQueue, settings: TaskSettings
    ) -> None:
        try:
            self.run_in = check_run_in(function, settings.run_in)
        except InvalidArgument as error:
            what = "it is to be" if error.argument == "handler" else f"run_in={error.given}: expected"
            raise InvalidTask(name, f"{what} {error.allowed}") from error
        self.name = name
        self.function = function
        self.queue = queue
        self.home = queue
        self.settings = settings
        self.arguments = Arguments(name, function, batch=settings.batch is not None)
        self.limit = self._limit()
        self.gathers = self._gathering()
        if settings.timing is not None:
            self._check_schedule()
        if self.arguments.lease_names and (settings.batch is not None or self.run_in == "process"):
            what = ", ".join(self.arguments.lease_names)
            advice = (
                "a batch has many: use current_run().leases" if settings.batch else "it stays in this process"
            )
            raise InvalidTask(name, f"it cannot be passed a lease as {what}: {advice}")
        self.stream, self.read_chunk = self._stream()
        self.read_result = self._reader() if settings.keep_result is not None else _unread

    @functools.cached_property
    def read_output(self) -> Callable[[bytes], Any]:
        """Reads the JSON of what the function returned, as a flow run has it; checks it as far as it can."""
        try:
            return codec.decoder(self.result_type)
        except codec.UnknownType:
            return json.loads

    def returns(self, kind: type[FanOut[Any] | Next[Any]]) -> bool:
        """Return whether the function says that it returns a `FanOut`, or a `Next`."""
        return any((get_origin(member) or member) is kind for member in _members(self._answer_type))

    @functools.cached_property
    def fans(self) -> bool:
        """Whether the function says that it fans out."""
        return self.returns(FanOut)

    @functools.cached_property
    def only_stage(self) -> str:
        """Why its calls cannot be plain items, but only stages; empty: they can."""
        if self.fans:
            return "it fans out, which only a stage of a flow run can: start one, with .add() or in a chain"
        if self.returns(Next):
            return (
                "it returns a Next, which chooses what follows, and nothing follows a plain item: use a Flow"
            )
        return ""

    def may_return(self, kind: type[FanOut[Any] | Next[Any]]) -> bool:
        """Return whether the function says so, or does not say what it returns."""
        untold = (Any, object, Signature.empty)
        return self.returns(kind) or any(member in untold for member in _members(self._answer_type))

    def fan_misfit(self, children: FanOut[Any]) -> str | None:
        """Return which child returns what the function does not declare; None: all that is known fits."""
        for name, kind in children.returned.items():
            if not fits(list_of([kind]), self.result_type):
                return (
                    f"its child {name!r} returns {name_of(kind)}, and {self.name!r} declares the results "
                    f"{name_of(self.result_type)}"
                )
        return None

    def picklable(self, task: Any) -> Callable[..., Any]:
        """Return what another process finds under the name of the function: the task, or the function.

        A task that a flow has made from another one has that one's function, and is found as that one.
        """
        module = sys.modules.get(getattr(self.function, "__module__", ""))
        path = getattr(self.function, "__qualname__", "").split(".")
        found: Any = module
        for part in path:
            found = getattr(found, part, None)
        is_task = isinstance(found, type(task)) and found.function is self.function
        return found if is_task else self.function

    @property
    def declaration(self) -> Declaration | None:
        """The schedule of the task; None if it has none."""
        if self.settings.timing is None:
            return None
        return Declaration(name=self.name, data=data_of(self.name, b"{}", None), timing=self.settings.timing)

    def _limit(self) -> DeclaredLimit | None:
        settings = self.settings
        if settings.concurrency is None and settings.rate is None:
            return None
        group = f"task:{self.name}"
        try:
            check_group(group)
        except InvalidArgument as error:
            raise InvalidTask(
                self.name, f"the name of its group, {group!r}, is to be {error.allowed}"
            ) from error
        return DeclaredLimit(group=group, rate=settings.rate, concurrency=settings.concurrency)

    def _gathering(self) -> str | None:
        settings, queue = self.settings, layout_of(self.queue)
        if settings.batch_wait is None:
            if settings.batch_by is not None:
                raise InvalidTask(
                    self.name,
                    "batch_by= says which calls wait for each other: say how long, with batch_wait=",
                )
            return None
        if settings.batch is None:
            raise InvalidTask(
                self.name, "batch_wait= is how long a batch waits for calls: give it batch=, too"
            )
        if settings.batch_by is not None and not isinstance(settings.batch_by, str):
            raise InvalidArgument(
                "batch_by", settings.batch_by, "the name of a field of the argument, in JSON"
            )
        size = check_int("batch", settings.batch, minimum=1, maximum=MAX_GATHERED)
        wait_ms = to_ms("batch_wait", settings.batch_wait)
        if self.limit is not None:
            raise InvalidTask(
                self.name,
                "its limits are those of one group, and calls that gather have a group for each batch: limit "
                "its queue, with queue.limits.set",
            )
        if queue is not None and queue.shard_by != "group":
            raise InvalidTask(
                self.name,
                "the calls of a batch would be in several shards: open the queue with shard_by='group', or "
                "give the task a queue without shards",
            )
        return f"{BATCH}{size}:{wait_ms}:{self.name}:"

    def group_of(self, arguments: bytes | None) -> str | None:
        """Return the group of a call: of all calls with limits, or in which this one gathers.

        `arguments`: a JSON object; None: not all are known, so it gathers with no others.

        Raises:
            InvalidCall: If its argument has no such field, or one that cannot be part of a group's name.
        """
        if self.gathers is None or arguments is None:
            return None if self.limit is None else self.limit.group
        key, field = "", self.settings.batch_by
        if field is not None:
            (item,) = json.loads(arguments).values()
            if not isinstance(item, dict) or field not in item:
                raise InvalidCall(
                    self.name, f"batch_by={field!r}: expected a field of this name, in {item!r}"
                )
            key = item[field] if isinstance(item[field], str) else json.dumps(item[field], sort_keys=True)
        try:
            return check_group(self.gathers + key)
        except InvalidArgument as error:
            raise InvalidCall(self.name, f"batch_by={field!r}: its group is to be {error.allowed}") from error

    def _stream(self) -> tuple[Emission | None, Callable[[bytes], Any] | None]:
        """Return how its runs emit chunks, and what reads one; nothing if they emit none."""
        settings, kind = self.settings, self.settings.streams
        keep, most = settings.keep_stream, settings.max_stream
        check_stream(keep, most, names=("keep_stream", "max_stream"))
        if kind is None:
            return None, None
        if settings.batch is not None or self.run_in == "process":
            where = "a batch has many items" if settings.batch is not None else "its function runs elsewhere"
            raise InvalidTask(self.name, f"it cannot emit chunks, as {where}: leave out `streams`")
        try:
            read = codec.decoder(kind)
        except codec.UnknownType as error:
            raise InvalidTask(self.name, f"streams={name_of(kind)}: {error}") from error

        def write(chunk: Any) -> bytes:
            try:
                data = codec.encode(chunk)
                read(data)
            except Exception as error:
                raise InvalidArgument(
                    "chunk", chunk, f"{name_of(kind)}, as `streams` says ({error})"
                ) from error
            return data

        return Emission(write=write, keep=keep, max_bytes=most), read

    def _check_schedule(self) -> None:
        if self.settings.batch is not None:
            raise InvalidTask(
                self.name, "a schedule adds calls without arguments, and with batch= each has one"
            )
        if self.limit is not None:
            raise InvalidTask(self.name, "a schedule adds calls without a group, and limits need one")
        if self.only_stage:
            raise InvalidTask(
                self.name,
                "a schedule adds plain items, and its function returns what only stages do: let a task with "
                "this schedule start a flow run",
            )
        if missing := self.arguments.required:
            raise InvalidTask(
                self.name,
                f"a schedule adds calls without arguments: give {', '.join(missing)} a default",
            )
        try:
            _ = self.declaration
        except InvalidArgument as error:
            raise InvalidTask(
                self.name, f"its name, that of its schedule, is to be {error.allowed}"
            ) from error

    @functools.cached_property
    def result_type(self) -> Any:
        """What the function returns to one call; Any if it does not say that."""
        annotation = self._answer_type
        return Any if annotation is Signature.empty else _output_of(annotation)

    @property
    def _answer_type(self) -> Any:
        """What the function returns to one call, as it is annotated."""
        annotation = signature_of(self.function).return_annotation
        if self.settings.batch is None:
            return annotation
        if wrong := [one for one in _members(annotation) if not _holds_answers(one)]:
            raise InvalidTask(
                self.name,
                f"with batch= it returns None or a list, with an answer for each item: {wrong[0]!r}",
            )
        return _answer_of(annotation)

    def _reader(self) -> Callable[[bytes], Any]:
        try:
            return codec.decoder(self.result_type)
        except codec.UnknownType as error:
            raise InvalidTask(
                self.name, f"what it returns: {error}; or keep no results, with keep_result=None"
            ) from error


def _holds_answers(annotation: Any) -> bool:
    """Return whether a batch may return a value of this type: nothing, or an answer for each item."""
    without = (None, type(None), Any, Signature.empty)
    return annotation in without or (get_origin(annotation) or annotation) in (list, tuple, Sequence)


def _answer_of(annotation: Any) -> Any:
    """Return the type of the answer to one item of a batch: of list[int | Exception] | None, int | None."""
    kinds: list[Any] = []
    for member in _members(annotation):
        if get_origin(member) is None:
            kinds.append(Any if member is not type(None) and member is not None else None)
        else:
            kinds += [
                one
                for one in _members(get_args(member)[0])
                if not (isinstance(one, type) and issubclass(one, BaseException))
            ]
    return Union[tuple(kinds)] if kinds else Any  # noqa: UP007 - of types that are known at run time only


def _output_of(annotation: Any) -> Any:
    """Return the type of the result in a flow run: of FanOut[int], list[int]; of Next[int], int."""
    kinds: list[Any] = []
    for member in _members(annotation):
        kind = get_origin(member) or member
        inner = get_args(member)[0] if get_origin(member) in (FanOut, Next) else Any
        if kind is FanOut:
            kinds.append(list[inner])  # type: ignore[valid-type] # a type that is known at run time only
        else:
            kinds.append(inner if kind is Next else member)
    return Union[tuple(kinds)]  # noqa: UP007 - as above


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _unread(_: bytes) -> Any:
    raise RuntimeError("the task keeps no results")
