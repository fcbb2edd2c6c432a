"""What telemetry records in a test: finished spans, and the points of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from leasequeue import telemetry

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler

SHORT = {
    "messaging.destination.name": "queue",
    "messaging.operation.name": "operation",
    "messaging.operation.type": "type",
    "leasequeue.task": "task",
    "leasequeue.outcome": "outcome",
    "error.type": "error",
}


class Recorded:
    """The exporters of a test, and what they got."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(sampler=sampler)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meter_provider = MeterProvider(metric_readers=[self.reader])

    def switch_on(self, *, traces: bool = True, metrics: bool = True) -> None:
        """Record with these exporters."""
        telemetry.instrument(
            tracer_provider=self.tracer_provider,
            meter_provider=self.meter_provider,
            traces=traces,
            metrics=metrics,
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, in the order of their ends."""
        return list(self.exporter.get_finished_spans())

    @property
    def producers(self) -> list[ReadableSpan]:
        """The spans of producers."""
        return [span for span in self.spans if span.kind is SpanKind.PRODUCER]

    @property
    def runs(self) -> list[ReadableSpan]:
        """The spans of runs."""
        return [span for span in self.spans if span.kind is SpanKind.CONSUMER]

    def points(self, metric: str) -> dict[tuple[tuple[str, Any], ...], int]:
        """Return the value of each point of a metric by its attributes; of a histogram, its count."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[tuple[str, Any], ...], int] = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for one in scope.metrics:
                    for point in one.data.data_points if one.name == metric else ():
                        attributes = dict(point.attributes or {})
                        assert attributes.pop("messaging.system") == "leasequeue"
                        key = tuple(sorted((SHORT[name], value) for name, value in attributes.items()))
                        if isinstance(point, HistogramDataPoint):
                            found[key] = point.count
                        elif isinstance(point, NumberDataPoint):
                            found[key] = int(point.value)
        return found

    def count(self, metric: str, **attributes: str) -> int:
        """Return the sum over all points of a metric that have these attributes."""
        wanted = attributes.items()
        return sum(value for key, value in self.points(metric).items() if wanted <= dict(key).items())


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    """Return the trace and the span that each link of a span leads to."""
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def place_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the trace and the id of a span."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id
