"""Records traces and metrics through the API of OpenTelemetry, by its conventions for messaging."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import metrics as metrics_api
from opentelemetry import trace as trace_api

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

#: The name of the tracer and of the meter.
SCOPE = "leasehold"


class Instruments:
    """What records the traces and metrics of this process.

    Args:
        tracer_provider: Makes the tracer; None: the global one.
        meter_provider: Makes the meter; None: the global one.
        traces: Whether to make spans.
        metrics: Whether to record metrics.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        traces: bool,
        metrics: bool,
    ) -> None:
        number = version("leasehold")
        self.tracer = trace_api.get_tracer(SCOPE, number, tracer_provider) if traces else None
        self.meter = metrics_api.get_meter(SCOPE, number, meter_provider) if metrics else None

    def end(self) -> None:
        """Report nothing more."""
