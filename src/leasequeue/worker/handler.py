"""A handler: a user's function, the queue whose items it is called with, and how it is run."""

from __future__ import annotations

import copy
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, get_args, get_origin

from leasequeue.durations import Duration, Size, check_int, check_size, seconds
from leasequeue.errors import InvalidArgument
from leasequeue.queue.lease import Lease
from leasequeue.queue.queue import AsyncWorkQueue
from leasequeue.queue.run_logs import MAX_KEPT, MIN_KEPT
from leasequeue.worker.outcomes import Complete
from leasequeue.worker.payload import Decode, Emission, decoder, encode_result
from leasequeue.worker.retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasequeue.queue.limits import DeclaredLimit
    from leasequeue.queue.schedules import Declaration
    from leasequeue.telemetry.meters import Series
    from leasequeue.worker.stage_context import FanOut

#: Where a handler runs: in the event loop, in a thread, or in a separate process.
RunIn = Literal["loop", "thread", "process"]
#: The maximum of items in a batch.
MAX_BATCH = 1000


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a worker passes to a function.

    Attributes:
        decode: Turns a lease into the first argument of the function, or into an item of a batch.
        by_name: Whether it is no batch, and `decode` returns arguments by their names instead.
        resource_names: The parameters that take what the lifespan provides.
        required: Those of them that have no default.
    """

    decode: Decode
    by_name: bool = False
    lease_names: Sequence[str] = ()
    resource_names: Sequence[str] = ()
    required: Sequence[str] = ()


class Consumer:
    """What a worker leases the items of a queue for: a handler, or a dispatcher, which has several.

    Attributes:
        name: What it is called in logs.
        batch: The maximum of items in each of its runs, at least; None: 1.
        gathers: Whether the server gathers items for its batches, so that those of a group run together.
        lease_time: For how long items are leased, in seconds; the worker renews the leases.
        declarations: The schedules of the queue that the worker declares.
        limits: The limits of groups that the worker declares before it leases.
        adds_to: The names of the queues to which its runs add items, as far as that is known before.
        feeds: Pairs: the home of flow runs, and a queue to which these may add items.
        foreign: The queues of foreign stages, which the worker maintains, and leases nothing from.
    """

    queue: AsyncWorkQueue
    name: str
    batch: int | None
    weight: float
    lease_time: float
    gathers: bool = False
    declarations: Sequence[Declaration] = ()
    limits: Sequence[DeclaredLimit] = ()
    adds_to: Sequence[str] = ()
    feeds: Sequence[tuple[str, str]] = ()
    foreign: Sequence[AsyncWorkQueue] = ()

    @property
    def handlers(self) -> Sequence[Handler]:
        """Its handlers, as they were defined."""
        raise NotImplementedError

    @property
    def all_handlers(self) -> Sequence[Handler]:
        """The handlers that its runs may have."""
        return self.handlers

    def on(self, queue: AsyncWorkQueue) -> Self:
        """Return a copy for the items of another queue."""
        raise NotImplementedError


class Handler(Consumer):
    """A function and its settings. `Worker.handler` makes it; `Worker.handlers` lists them.

    Its settings are those that `Worker.handler` takes.

    Attributes:
        consumer: What its items are leased for: itself, or the dispatcher of a task queue.
        max_attempts: After so many attempts an item is not run again.
        inputs: What is passed to the function.
        encode: Turns what the function returns into a result.
        fits: Raises if the JSON of what the function has returned is no result of it; None: all is. It is
            called for stages of flow runs.
        may_return: Whether the function may return a `FanOut`, or a `Next`, in such a stage; None: both.
        fan_misfit: Returns why the children in a `FanOut` are not what the function declares, or None.
        together: What the groups begin with whose items run together; items of others, or of none, run alone.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        queue: AsyncWorkQueue,
        function: Callable[..., Any],
        *,
        run_in: RunIn | None,
        batch: int | None,
        weight: float,
        retry: RetryPolicy,
        timeout: Duration | None,
        lease_time: Duration,
        keep_result: Duration | None,
        keep_logs: Size | None = None,
        name: str | None = None,
        inputs: Inputs | None = None,
        encode: Callable[[Any], bytes] = encode_result,
        correlation_of: Callable[[bytes], str | None] = lambda _: None,
        fits: Callable[[bytes], object] | None = None,
        may_return: Callable[[type[Any]], bool] | None = None,
        fan_misfit: Callable[[FanOut[Any]], str | None] = lambda _: None,
        stream: Emission | None = None,
        gathers: bool = False,
        together: bytes = b"",
    ) -> None:
        if not isinstance(queue, AsyncWorkQueue):
            raise InvalidArgument("queue", queue, "an AsyncWorkQueue")
        self.queue = queue
        self.consumer: Consumer = self
        self.function = function
        self.name = name or str(getattr(function, "__qualname__", repr(function)))
        self.run_in = check_run_in(function, run_in)
        self.batch = None if batch is None else check_int("batch", batch, minimum=1, maximum=MAX_BATCH)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < 1e6:
            raise InvalidArgument("weight", weight, "a number above 0")
        if not isinstance(retry, RetryPolicy):
            raise InvalidArgument("retry", retry, "a RetryPolicy")
        self.weight = float(weight)
        self.retry = retry
        self.max_attempts = retry.max_attempts
        self.timeout = None if timeout is None else seconds("timeout", timeout, zero=False)
        self.lease_time = seconds("lease_time", lease_time, zero=False)
        self.keep_result = None if keep_result is None else seconds("keep_result", keep_result, zero=False)
        self.keep_logs = None if keep_logs is None else check_kept_logs(keep_logs, batch)
        self.inputs = _inputs(function, self.run_in, self.batch) if inputs is None else inputs
        self.encode = encode
        self.correlation_of = correlation_of
        self.fits = fits
        self.may_return = may_return
        self.fan_misfit = fan_misfit
        self.stream = stream
        self.gathers = gathers
        self.together = together
        #: The metrics of its completed runs; see `observed`.
        self.completions: Series | None = None

    @property
    def handlers(self) -> Sequence[Handler]:
        """Itself."""
        return (self,)

    @functools.cached_property
    def returned_none(self) -> Complete:
        """The outcome of a run that returned None, as most functions do: one for all of them."""
        return Complete(self.encode(None), self.keep_result)

    def on(self, queue: AsyncWorkQueue) -> Self:
        """Return a copy for the items of another queue."""
        made = copy.copy(self)
        made.queue = queue
        made.consumer = made
        made.completions = None
        return made


def _inputs(function: Callable[..., Any], run_in: RunIn, batch: int | None) -> Inputs:
    first, *others = _parameters(function)
    payload = item_type(first) if batch else first.annotation
    resources = [one for one in others if one.annotation is not Lease]
    inputs = Inputs(
        decode=decoder(payload),
        lease_names=[one.name for one in others if one.annotation is Lease],
        resource_names=[one.name for one in resources],
        required=[one.name for one in resources if one.default is inspect.Parameter.empty],
    )
    if inputs.lease_names and (batch or run_in == "process"):
        raise InvalidArgument(
            "handler",
            function,
            "no Lease beside the payload: a batch takes list[Lease] as its first "
            "parameter, and a lease cannot be sent to another process",
        )
    if run_in == "process" and payload is Lease:
        raise InvalidArgument("handler", function, "a payload: a lease cannot be sent to another process")
    return inputs


def check_kept_logs(size: Size, batch: int | None) -> int:
    """Check how many bytes of logs are kept of each item, and return that."""
    if batch is not None:
        allowed = "None with batch=: the records of a run are about all its items"
        raise InvalidArgument("keep_logs", size, allowed)
    return check_size("keep_logs", size, minimum=MIN_KEPT, maximum=MAX_KEPT)


def check_run_in(function: Callable[..., Any], wanted: RunIn | None) -> RunIn:
    """Check where a function is to run, and return that; None chooses by the function."""
    if not callable(function):
        raise InvalidArgument("handler", function, "a function")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called):
        called = called.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidArgument("handler", function, "a function that returns; a generator would not run")
    is_async = inspect.iscoroutinefunction(called)
    if wanted not in (None, "loop", "thread", "process"):
        raise InvalidArgument("run_in", wanted, '"loop", "thread" or "process"')
    if is_async and wanted in ("thread", "process"):
        raise InvalidArgument(
            "run_in", wanted, 'None or "loop" for an async function, unless you make it a plain one'
        )
    if not is_async and wanted == "loop":
        advice = "which would block the event loop, unless you make it async"
        raise InvalidArgument("run_in", wanted, f'None, "thread" or "process" for a plain function, {advice}')
    return wanted or ("loop" if is_async else "thread")


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, with its annotations evaluated."""
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidArgument(
            "handler",
            function,
            f"a handler whose annotations can be evaluated when it is defined ({error}): import "
            "them outside of `if TYPE_CHECKING`",
        ) from error
    except ValueError as error:
        raise InvalidArgument("handler", function, f"a function written in Python ({error})") from error


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    found = list(signature_of(function).parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if not found or found[0].kind in (*variadic, inspect.Parameter.KEYWORD_ONLY):
        raise InvalidArgument("handler", function, "a function whose first parameter takes the payload")
    for one in found[1:]:
        if one.kind in (*variadic, inspect.Parameter.POSITIONAL_ONLY):
            raise InvalidArgument("handler", function, f"parameters that have names; {one} has none")
    return found


def item_type(parameter: inspect.Parameter) -> Any:
    """Return the type of the items in a batch handler's list."""
    annotation = parameter.annotation
    if annotation in (inspect.Parameter.empty, list):
        return inspect.Parameter.empty
    if get_origin(annotation) is None or len(get_args(annotation)) != 1:
        raise InvalidArgument("handler", annotation, "list[...] as the first parameter of a batch handler")
    return get_args(annotation)[0]
