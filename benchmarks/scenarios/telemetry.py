"""What metrics and traces cost a worker: jobs that do nothing with all off, with metrics, with traces too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.measure import COSTS, Row, Setting, number_row, speed_row, take_turns
from benchmarks.scenarios.tasks import CONCURRENCY, NO_OP, Tasks
from leasequeue import telemetry as switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from benchmarks.bench import Bench

OFF, METRICS, TRACES = "off", "metrics", "metrics and traces"


class _Dropped(SpanExporter):
    """Drops the spans, as an exporter to another process does after it has sent them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - of the base class
        """See the base class."""
        return SpanExportResult.SUCCESS


class _Observed(Tasks):
    """A worker of tasks, with telemetry."""

    def __init__(self, bench: Bench, jobs: int, mode: str) -> None:
        super().__init__(bench, jobs, None)
        self._mode = mode
        self._meters = MeterProvider(metric_readers=[InMemoryMetricReader()])
        self._tracers = TracerProvider()
        self._tracers.add_span_processor(BatchSpanProcessor(_Dropped()))

    async def round(self) -> None:
        """Switch telemetry on, also for what adds the jobs, and measure."""
        if self._mode != OFF:
            switch.instrument(
                tracer_provider=self._tracers, meter_provider=self._meters, traces=self._mode == TRACES
            )
        try:
            await super().round()
        finally:
            switch.uninstrument()
            self._tracers.force_flush()  # in its own round

    def close(self) -> None:
        """End the threads of the exporters."""
        self._meters.shutdown()
        self._tracers.shutdown()


async def telemetry(bench: Bench) -> list[Row]:
    """Measure jobs that do nothing; the ratios are those of two rounds that follow each other."""
    jobs = bench.scaled(20_000, 1_000)
    targets = {mode: _Observed(bench, jobs, mode) for mode in (OFF, METRICS, TRACES)}
    await take_turns(bench.scaled(9, 2), [target.round for target in targets.values()])
    rows = []
    for mode, target in targets.items():
        target.close()
        setting: Setting = {"telemetry": mode, "concurrency": CONCURRENCY}
        rows.append(speed_row(NO_OP, target.samples, costs=(*COSTS, "trips_per_item"), setting=setting))
    for mode in (METRICS, TRACES):
        pairs = list(zip(targets[mode].samples, targets[OFF].samples, strict=True))
        setting = {"telemetry": mode}
        rows += [
            number_row(
                "time beside off", "x", [on.seconds / off.seconds for on, off in pairs], setting=setting
            ),
            number_row(
                "CPU beside off", "x", [on.client_cpu / off.client_cpu for on, off in pairs], setting=setting
            ),
        ]
    return rows
