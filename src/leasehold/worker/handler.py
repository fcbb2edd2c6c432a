"""A handler: a user's function, the queue whose items it is called with, and how it is run."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from leasehold.durations import Duration, check_int, seconds
from leasehold.errors import InvalidArgument
from leasehold.queue.lease import Lease
from leasehold.queue.queue import AsyncWorkQueue
from leasehold.retry import RetryPolicy
from leasehold.worker.payload import decoder

if TYPE_CHECKING:
    from collections.abc import Callable

#: Where a handler runs: in the event loop, in a thread, or in a separate process.
RunIn = Literal["loop", "thread", "process"]
#: The maximum of items in a batch.
MAX_BATCH = 1000


class Handler:
    """A function and its settings. `Worker.handler` makes it; `Worker.handlers` lists them.

    Attributes:
        name: The function's name, for logs.
        queue: The queue whose items it is called with.
        function: The function.
        run_in: Where it runs: `"loop"`, `"thread"` or `"process"`.
        batch: The maximum of items in one call; None: each call takes one item, not a list.
        weight: Its share of the slots.
        retry: When failed items are tried again.
        max_attempts: After so many attempts an item is not run again.
        timeout: The longest that a run may take, in seconds, or None.
        lease_time: For how long items are leased, in seconds; the worker renews the leases.
        keep_result: How long results are kept, in seconds; None: not at all.
        decode: Turns a lease into the first argument of the function, or into an item of a batch.
        lease_names: The parameters that take the lease.
        resource_names: The parameters that take what the lifespan provides.
        required: Those of them that have no default.
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
    ) -> None:
        if not isinstance(queue, AsyncWorkQueue):
            raise InvalidArgument("queue", queue, "an AsyncWorkQueue")
        self.queue = queue
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.run_in = _run_in(function, run_in)
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
        first, *others = _parameters(function)
        payload = _item_type(first) if self.batch else first.annotation
        self.decode = decoder(payload)
        self.lease_names = [one.name for one in others if one.annotation is Lease]
        resources = [one for one in others if one.annotation is not Lease]
        self.resource_names = [one.name for one in resources]
        self.required = [one.name for one in resources if one.default is inspect.Parameter.empty]
        if self.lease_names and (self.batch or self.run_in == "process"):
            raise InvalidArgument(
                "handler",
                function,
                "no Lease beside the payload: a batch takes list[Lease] as its first "
                "parameter, and a lease cannot be sent to another process",
            )
        if self.run_in == "process" and payload is Lease:
            raise InvalidArgument("handler", function, "a payload: a lease cannot be sent to another process")


def _run_in(function: Callable[..., Any], wanted: RunIn | None) -> RunIn:
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
            "run_in", wanted, f"a plain function; {function!r} is async and runs in the loop"
        )
    if not is_async and wanted == "loop":
        raise InvalidArgument("run_in", wanted, f"an async function; {function!r} would block the event loop")
    return wanted or ("loop" if is_async else "thread")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidArgument(
            "handler",
            function,
            f"a handler whose annotations can be evaluated when it is defined ({error}): import "
            "them outside of `if TYPE_CHECKING`",
        ) from error
    except ValueError as error:
        raise InvalidArgument("handler", function, f"a function written in Python ({error})") from error
    found = list(signature.parameters.values())
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if not found or found[0].kind in (*variadic, inspect.Parameter.KEYWORD_ONLY):
        raise InvalidArgument("handler", function, "a function whose first parameter takes the payload")
    for one in found[1:]:
        if one.kind in (*variadic, inspect.Parameter.POSITIONAL_ONLY):
            raise InvalidArgument("handler", function, f"parameters that have names; {one} has none")
    return found


def _item_type(parameter: inspect.Parameter) -> Any:
    """Return the type of the items in a batch handler's list."""
    annotation = parameter.annotation
    if annotation in (inspect.Parameter.empty, list):
        return inspect.Parameter.empty
    if get_origin(annotation) is None or len(get_args(annotation)) != 1:
        raise InvalidArgument("handler", annotation, "list[...] as the first parameter of a batch handler")
    return get_args(annotation)[0]
