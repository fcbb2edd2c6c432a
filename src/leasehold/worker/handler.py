"""A handler: a function of the user's, what it wants to be given, and where it runs."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from leasehold.durations import Duration, check_int, seconds
from leasehold.errors import InvalidArgument, PayloadError
from leasehold.queue.lease import Lease
from leasehold.queue.queue import AsyncWorkQueue
from leasehold.retry import RetryPolicy
from leasehold.worker.payload import decoder
from leasehold.worker.pools import InThread, in_process, noting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import anyio

    from leasehold.worker.pools import Threads
    from leasehold.worker.run import Run

#: Where a handler runs: in the event loop, in a thread, or in a process of its own.
Place = Literal["loop", "thread", "process"]
#: What middleware calls to go on, and what it is itself.
CallNext = "Callable[[Run], Awaitable[Any]]"
Middleware = "Callable[[Run, CallNext], Awaitable[Any]]"
#: The most items of one batch.
MAX_BATCH = 1000


class Handler:
    """A function, and how the items of one queue are run through it. `Worker.handler` makes it.

    Attributes:
        name: The function's name, for logs.
        queue: Where its items come from.
        batch: How many items it gets at once; None: it gets one.
        timeout: The longest that a run may take, in seconds, or None.
        lease_time: How long items are leased; they are renewed while they are here.
    """

    def __init__(  # noqa: PLR0913 - all but two by name
        self,
        queue: AsyncWorkQueue,
        function: Callable[..., Any],
        *,
        run_in: Place | None,
        batch: int | None,
        weight: float,
        retry: RetryPolicy,
        timeout: Duration | None,
        lease_time: Duration,
        keep_result: Duration | None,
    ) -> None:
        self.queue = _checked_queue(queue)
        self.function = function
        self.name = getattr(function, "__qualname__", repr(function))
        self.run_in = _place(function, run_in)
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
        self._decode = decoder(_item_type(first) if self.batch else first.annotation)
        self._lease_names = [one.name for one in others if one.annotation is Lease]
        self.needs = [
            one.name
            for one in others
            if one.annotation is not Lease and one.default is inspect.Parameter.empty
        ]
        self._wishes = [one.name for one in others if one.annotation is not Lease]
        if self._lease_names and (self.batch or self.run_in == "process"):
            raise InvalidArgument(
                "handler",
                function,
                "no Lease beside the payload: a batch takes list[Lease] as its first "
                "parameter, and a lease cannot go to another process",
            )
        if self.run_in == "process" and (_item_type(first) if self.batch else first.annotation) is Lease:
            raise InvalidArgument("handler", function, "a payload: a lease cannot go to another process")
        #: Runs the function on the items of a run; `prepare` sets it.
        self.call: Callable[[Run], Awaitable[Any]] = self._unprepared

    def prepare(
        self,
        resources: Mapping[str, Any],
        middleware: Sequence[Callable[..., Awaitable[Any]]],
        *,
        threads: Threads,
        processes: anyio.CapacityLimiter,
    ) -> None:
        """Put together what happens with each run.

        Raises:
            InvalidArgument: If the handler asks for something that the lifespan does not give.
        """
        missing = [name for name in self.needs if name not in resources]
        if missing:
            raise InvalidArgument(
                "handler",
                self.name,
                f"a handler that asks for what the lifespan yields ({', '.join(resources) or 'nothing'}); "
                f"{', '.join(missing)} is not among it",
            )
        given = {name: resources[name] for name in self._wishes if name in resources}
        invoke = self._invoker(given, threads=threads, processes=processes)
        call = self._batch_call(invoke) if self.batch else self._single_call(invoke)
        if self.run_in == "thread":
            call = functools.partial(noting, call)
        for layer in reversed(middleware):
            call = functools.partial(_through, layer, call)
        self.call = call

    async def _unprepared(self, _: Run) -> Any:
        raise RuntimeError("the handler was not prepared")

    def _invoker(
        self,
        given: Mapping[str, Any],
        *,
        threads: Threads,
        processes: anyio.CapacityLimiter,
    ) -> Callable[..., Awaitable[Any]]:
        function = functools.partial(self.function, **given) if given else self.function
        if self.run_in == "loop":
            return function
        if self.run_in == "process":
            return in_process(function, self.name, processes)  # type: ignore[no-any-return]
        return InThread(function, threads)

    def _single_call(self, invoke: Callable[..., Awaitable[Any]]) -> Callable[[Run], Awaitable[Any]]:
        decode, names = self._decode, self._lease_names
        if not names:

            async def call(run: Run) -> Any:
                return await invoke(decode(run.leases[0]))
        else:

            async def call(run: Run) -> Any:
                lease = run.leases[0]
                return await invoke(decode(lease), **dict.fromkeys(names, lease))

        return call

    def _batch_call(self, invoke: Callable[..., Awaitable[Any]]) -> Callable[[Run], Awaitable[Any]]:
        decode = self._decode

        async def call(run: Run) -> list[Any]:
            """Give an answer per item: a value, or the exception that stands for it."""
            answers: list[Any] = [None] * len(run.leases)
            good, payloads = [], []
            for at, lease in enumerate(run.leases):
                try:
                    payloads.append(decode(lease))
                    good.append(at)
                except PayloadError as error:
                    answers[at] = error
            given = await invoke(payloads) if payloads else None
            if given is None:
                return answers
            if not isinstance(given, list) or len(given) != len(payloads):
                raise TypeError(
                    f"{self.name} got {len(payloads)} items and returned {given!r:.60}; a batch handler "
                    "returns None, or a list with a value or an exception for each item"
                )
            for at, answer in zip(good, given, strict=True):
                answers[at] = answer
            return answers

        return call


async def _through(
    layer: Callable[..., Awaitable[Any]], call: Callable[[Run], Awaitable[Any]], run: Run
) -> Any:
    return await layer(run, call)


def _checked_queue(queue: AsyncWorkQueue) -> AsyncWorkQueue:
    if not isinstance(queue, AsyncWorkQueue):
        raise InvalidArgument("queue", queue, "an AsyncWorkQueue")
    return queue


def _place(function: Callable[..., Any], wanted: Place | None) -> Place:
    if not callable(function):
        raise InvalidArgument("handler", function, "a function")
    called: Any = function
    while isinstance(called, functools.partial):
        called = called.func
    if not inspect.isroutine(called):
        called = called.__call__
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise InvalidArgument("handler", function, "a function that returns; one that yields would not run")
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
            f"a handler whose annotations can be read when it is defined ({error}): import "
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
    """What a batch is a list of."""
    annotation = parameter.annotation
    if annotation in (inspect.Parameter.empty, list):
        return inspect.Parameter.empty
    if get_origin(annotation) is None or len(get_args(annotation)) != 1:
        raise InvalidArgument("handler", annotation, "list[...] as the first parameter of a batch handler")
    return get_args(annotation)[0]
