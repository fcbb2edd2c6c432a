"""Traces and metrics through the API of OpenTelemetry: the switch, which imports nothing of OpenTelemetry.

Like other instrumentations of OpenTelemetry, it is switched on for the whole process. The rooms above ask
`active` once for each call or batch; while it is None, that is all it costs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakMethod

from leasequeue.errors import ExtraMissing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from leasequeue.telemetry.instruments import Instruments

T = TypeVar("T")

__all__ = ["instrument", "uninstrument"]

#: What records the traces and metrics of this process; None: nothing is recorded.
active: Instruments | None = None
#: The task whose calls are being added; None: plain items, or calls of several tasks.
task_added: ContextVar[str | None] = ContextVar("leasequeue task added", default=None)


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    traces: bool = True,
    metrics: bool = True,
) -> None:
    """Record traces and metrics of all queues and workers of this process, from now on.

        leasequeue.telemetry.instrument()

    A second call replaces the first. Calls and runs that have begun are recorded as they began.

    Args:
        tracer_provider: Makes the tracer; None: the global one of OpenTelemetry.
        meter_provider: Makes the meter; None: the global one of OpenTelemetry.
        traces: Whether to make spans, and to keep the trace of a producer with its items.
        metrics: Whether to record metrics.

    Raises:
        ExtraMissing: If `leasequeue[telemetry]` is not installed.
    """
    global active  # noqa: PLW0603 - the switch of the process
    try:
        from leasequeue.telemetry.instruments import Instruments
    except ImportError as error:
        raise ExtraMissing("traces and metrics", "telemetry") from error
    active = Instruments(tracer_provider, meter_provider, traces=traces, metrics=metrics)


def uninstrument() -> None:
    """Record nothing more. Spans that have begun still end."""
    global active  # noqa: PLW0603 - as above
    active = None


#: What tells how many runs a part of a worker has, by queue and handler, as long as that exists.
_run_counts: set[WeakMethod[Callable[[], Mapping[tuple[str, str], int]]]] = set()


def count_runs(active_runs: Callable[[], Mapping[tuple[str, str], int]]) -> None:
    """Count the active runs that a method returns, by queue and handler, as long as its object exists.

    The method is called in any thread.
    """
    _run_counts.add(WeakMethod(active_runs, _run_counts.discard))


def active_runs() -> Iterator[Mapping[tuple[str, str], int]]:
    """Return the active runs of each part of this process that runs handlers."""
    return (count() for one in [*_run_counts] if (count := one()) is not None)


async def adding(task: str, added: Awaitable[T]) -> T:
    """Await a call that adds items, and name the task whose calls they are."""
    token = task_added.set(task)
    try:
        return await added
    finally:
        task_added.reset(token)


def continued(trace: bytes | None) -> AbstractContextManager[None]:
    """Let the spans that the block begins be children of a span of another process."""
    if trace is None:
        return nullcontext()
    from leasequeue.telemetry import instruments

    return instruments.continued(trace)
