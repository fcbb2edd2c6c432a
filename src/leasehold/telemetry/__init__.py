"""Traces and metrics through the API of OpenTelemetry: the switch, which imports nothing of OpenTelemetry.

Like other instrumentations of OpenTelemetry, it is switched on for the whole process. The rooms above ask
`active` once for each call or batch; while it is None, that is all it costs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from leasehold.errors import ExtraMissing

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from leasehold.telemetry.instruments import Instruments

__all__ = ["instrument", "uninstrument"]

#: What records the traces and metrics of this process; None: nothing is recorded.
active: Instruments | None = None
_lock = threading.Lock()


def instrument(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    traces: bool = True,
    metrics: bool = True,
) -> None:
    """Record traces and metrics of all queues and workers of this process, from now on.

        leasehold.telemetry.instrument()

    A second call replaces the first. Calls and runs that have begun are recorded as they began.

    Args:
        tracer_provider: Makes the tracer; None: the global one of OpenTelemetry.
        meter_provider: Makes the meter; None: the global one of OpenTelemetry.
        traces: Whether to make spans, and to keep the trace of a producer with its items.
        metrics: Whether to record metrics.

    Raises:
        ExtraMissing: If `leasehold[telemetry]` is not installed.
    """
    global active
    try:
        from leasehold.telemetry.instruments import Instruments
    except ImportError as error:
        raise ExtraMissing("traces and metrics", "telemetry") from error
    with _lock:
        before, active = active, Instruments(tracer_provider, meter_provider, traces=traces, metrics=metrics)
        if before is not None:
            before.end()


def uninstrument() -> None:
    """Record nothing more. Spans that have begun still end."""
    global active
    with _lock:
        before, active = active, None
        if before is not None:
            before.end()
