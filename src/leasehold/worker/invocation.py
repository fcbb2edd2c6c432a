"""Call a handler for a run: decode the payloads, pass resources, and go through the middleware."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from leasehold.errors import InvalidArgument, PayloadError
from leasehold.worker.pools import InThread, in_process, with_current_run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    import anyio

    from leasehold.worker.handler import Handler
    from leasehold.worker.pools import Threads
    from leasehold.worker.run import ActiveRun


def build_call(
    handler: Handler,
    resources: Mapping[str, Any],
    middleware: Sequence[Callable[..., Awaitable[Any]]],
    *,
    threads: Threads,
    processes: anyio.CapacityLimiter,
) -> Callable[[ActiveRun], Awaitable[Any]]:
    """Build the function that executes a run of a handler.

    Args:
        handler: The handler.
        resources: What the lifespan provides, by name.
        middleware: Wrapped around each run, the outermost first.
        threads: Runs handlers in threads.
        processes: Limits the number of processes for handlers.

    Returns:
        An async function. For a batch it returns a list with a value or an exception for each item.

    Raises:
        InvalidArgument: If the handler has a parameter that the lifespan does not provide, or cannot be sent
            to another process.
    """
    missing = [name for name in handler.required if name not in resources]
    if missing:
        raise InvalidArgument(
            "handler",
            handler.name,
            f"parameters that the lifespan provides; it does not provide {', '.join(missing)} "
            f"(it provides {', '.join(resources) or 'nothing'})",
        )
    given = {name: resources[name] for name in handler.resource_names if name in resources}
    function = functools.partial(handler.function, **given) if given else handler.function
    invoke: Callable[..., Awaitable[Any]] = function
    if handler.run_in == "process":
        invoke = in_process(function, handler.name, processes)
    elif handler.run_in == "thread":
        invoke = InThread(function, threads)
    call = _batch_call(handler, invoke) if handler.batch else _single_call(handler, invoke)
    if handler.run_in == "thread":
        call = functools.partial(with_current_run, call)
    for layer in reversed(middleware):
        call = functools.partial(_through, layer, call)
    return call


def _single_call(
    handler: Handler, invoke: Callable[..., Awaitable[Any]]
) -> Callable[[ActiveRun], Awaitable[Any]]:
    decode, names = handler.decode, handler.lease_names
    if not names:

        async def call(run: ActiveRun) -> Any:
            return await invoke(decode(run.leases[0]))
    else:

        async def call(run: ActiveRun) -> Any:
            lease = run.leases[0]
            return await invoke(decode(lease), **dict.fromkeys(names, lease))

    return call


def _batch_call(
    handler: Handler, invoke: Callable[..., Awaitable[Any]]
) -> Callable[[ActiveRun], Awaitable[Any]]:
    decode = handler.decode

    async def call(run: ActiveRun) -> list[Any]:
        answers: list[Any] = [None] * len(run.leases)
        decoded, payloads = [], []
        for at, lease in enumerate(run.leases):
            try:
                payloads.append(decode(lease))
                decoded.append(at)
            except PayloadError as error:
                answers[at] = error
        returned = await invoke(payloads) if payloads else None
        if returned is None:
            return answers
        if not isinstance(returned, list) or len(returned) != len(payloads):
            raise TypeError(
                f"{handler.name} got {len(payloads)} items and returned {returned!r:.60}; a batch handler "
                "returns None, or a list with a value or an exception for each item"
            )
        for at, answer in zip(decoded, returned, strict=True):
            answers[at] = answer
        return answers

    return call


async def _through(
    layer: Callable[..., Awaitable[Any]], call: Callable[[ActiveRun], Awaitable[Any]], run: ActiveRun
) -> Any:
    return await layer(run, call)
