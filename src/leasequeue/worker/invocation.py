"""Call a handler for a run: decode the payloads, pass resources, and go through the middleware."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.errors import InvalidArgument, PayloadError
from leasequeue.errors.describing import shown
from leasequeue.worker.child import call_plain
from leasequeue.worker.outcomes import Signal
from leasequeue.worker.processes import in_process
from leasequeue.worker.stages import Skipped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from leasequeue.worker.handler import Handler
    from leasequeue.worker.payload import Emission
    from leasequeue.worker.run import ActiveRun


#: Executes a run, and returns what the handler returned.
Call: TypeAlias = "Callable[[ActiveRun], Awaitable[Any]]"

NO_NAMES: dict[str, Any] = {}
NO_LIFESPAN = (
    "it provides nothing: write `worker = Worker(…, lifespan=lifespan)`, "
    "and run that worker, as `leasequeue worker app:worker` does"
)


def build_call(
    handler: Handler,
    resources: Mapping[str, Any],
    middleware: Sequence[Callable[..., Awaitable[Any]]],
    *,
    threads: Threads,
) -> Call:
    """Build the function that executes a run. For a batch, it returns an answer or an error for each item.

    Refuse a handler with a parameter that the lifespan does not provide, or that cannot be sent to another
    process.
    """
    missing = [name for name in handler.inputs.required if name not in resources]
    if missing:
        provides = f"it provides {', '.join(resources)}" if resources else NO_LIFESPAN
        raise InvalidArgument(
            "handler",
            handler.name,
            f"parameters that the lifespan provides; it does not provide {', '.join(missing)} ({provides})",
        )
    given = {name: resources[name] for name in handler.inputs.resource_names if name in resources}
    function = functools.partial(handler.function, **given) if given else handler.function
    execute = _execute_batch if handler.batch else _execute
    call: Call
    if handler.run_in == "loop":
        call = functools.partial(execute, handler, function)
    elif handler.run_in == "process":
        invoke = in_process(function, handler.name)

        def call(run: ActiveRun) -> Awaitable[Any]:
            return execute(handler, functools.partial(invoke, run.process), run)

    else:

        def call(run: ActiveRun) -> Awaitable[Any]:
            return execute(handler, functools.partial(in_thread, threads, function, run), run)

    if handler.stream is not None:
        call = functools.partial(_streaming, handler.stream, call)
    for layer in reversed(middleware):
        call = functools.partial(_through, layer, call)
    return call


async def _streaming(stream: Emission, call: Call, run: ActiveRun) -> Any:
    await run.begin_stream(stream)
    return await call(run)


async def _execute(handler: Handler, invoke: Callable[..., Awaitable[Any]], run: ActiveRun) -> Any:
    lease, inputs = run.leases[0], handler.inputs
    payload = inputs.decode(lease)
    names = dict.fromkeys(inputs.lease_names, lease) if inputs.lease_names else NO_NAMES
    return await (invoke(**payload, **names) if inputs.by_name else invoke(payload, **names))


async def _execute_batch(handler: Handler, invoke: Callable[..., Awaitable[Any]], run: ActiveRun) -> Any:
    answers: list[Any] = [None] * len(run.leases)
    decoded, payloads = [], []
    skipped = None if run.stages is None else run.stages.skipped
    for at, lease in enumerate(run.leases):
        if skipped and lease.token in skipped:
            answers[at] = Skipped(skipped[lease.token])
            continue
        try:
            payloads.append(handler.inputs.decode(lease))
            decoded.append(at)
        except (PayloadError, Signal) as error:
            answers[at] = error
    returned = await invoke(payloads) if payloads else None
    if returned is None:
        return answers
    if type(returned) is tuple:
        returned = [*returned]
    if not isinstance(returned, list) or len(returned) != len(payloads):
        raise TypeError(
            f"{handler.name} got {len(payloads)} items and returned {shown(returned):.60}; a batch handler "
            "returns None, or a list with a value or an exception for each item"
        )
    for at, answer in zip(decoded, returned, strict=True):
        answers[at] = answer
    return answers


async def _through(layer: Callable[..., Awaitable[Any]], call: Call, run: ActiveRun) -> Any:
    return await layer(run, call)


class Threads:
    """A pool of daemon threads.

    The pool of the standard library joins its threads when the process exits, so that one thread that hangs
    would keep a worker from exiting.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._count = 0
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Call a function in a thread. Only the event loop may use this."""
        future: Future[Any] = Future()
        self._jobs.put((future, call))
        if not self._idle.acquire(blocking=False) and self._count < self._maximum:
            self._count += 1
            threading.Thread(target=self._work, name=f"leasequeue handler {self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """End each thread after its current call."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                    future.set_exception(error)
            del job, future, call  # keep no references while waiting
            self._idle.release()


async def in_thread(
    threads: Threads, function: Callable[..., Any], run: ActiveRun, /, *payload: Any, **names: Any
) -> Any:
    """Call a function in a thread, in a copy of the caller's context.

    If this is cancelled while the thread works, the thread is noted in the run.
    """
    context = contextvars.copy_context()
    thread = threads.submit(functools.partial(context.run, call_plain, function, *payload, **names))
    try:
        return await asyncio.wrap_future(thread)
    except asyncio.CancelledError:
        if not thread.done():
            run.thread = thread
        raise
