"""The HTTP port of a worker process: `/live`, `/ready` and `/metrics`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from leasequeue import telemetry
from leasequeue.cli.probes import ProbeServer, note, one_at_a_time, probe
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Iterable
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from opentelemetry.metrics import CallbackOptions, Meter

    from leasequeue.worker import Worker

_FIGURES = re.compile(r"\d+(\.\d+)?", re.ASCII)

log = Log("leasequeue.worker")


class HealthPort:
    """Answers the probes of one worker process, from before its program is imported until the process ends.

    Args:
        host: The address to listen at.
        port: The port.
        waits: Whether to wait until the address is free. A process that replaces another needs this: the
            other one listens until it retires.
    """

    def __init__(self, host: str, port: int, *, waits: bool) -> None:
        self._worker: Worker | None = None
        self._metrics = note("the worker has not started yet", 503)
        routes = {
            "/live": probe(self._stuck),
            "/ready": probe(self._unready),
            "/metrics": self._answer_metrics,
        }
        self._server = ProbeServer(host, port, routes, option="--health-port")
        self._waits = waits
        #: What was logged of an unhealthy worker, without figures: probes ask every few seconds.
        self._logged: set[str] = set()

    @property
    def url(self) -> str:
        """The address as a URL."""
        return self._server.url

    def start(self) -> None:
        """Listen."""
        if self._waits:
            self._server.start_soon()
        else:
            self._server.start()
            log.info("probes and metrics: %s/live, /ready, /metrics", self._server.url)

    def serve(self, worker: Worker) -> None:
        """Answer for a worker that is about to start."""
        self._metrics = _metrics(worker)
        self._worker = worker

    def close(self) -> None:
        """Listen no more: another process is to take over."""
        self._server.close()

    def _stuck(self) -> Iterable[str]:
        if self._worker is not None and not (health := self._worker.health()).live:
            yield from health.public_reasons

    def _unready(self) -> Iterable[str]:
        if self._worker is None:
            yield "the program of the worker is being imported"
            return
        if self._worker.stopping:
            yield "the worker is stopping"
        health = self._worker.health()
        self._log(health.reasons)
        yield from health.public_reasons

    def _log(self, reasons: Iterable[str]) -> None:
        """Log what the answer does not show: the errors of servers, with their addresses."""
        now = {_FIGURES.sub("", one): one for one in reasons}
        if new := [one for known, one in now.items() if known not in self._logged]:
            log.warning("not ready: %s", "; ".join(new))
        self._logged = self._logged | now.keys() if now else set()

    def _answer_metrics(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self._metrics(environ, start_response)


def report_health(meter: Meter, worker: Worker) -> None:
    """Report whether a worker is healthy."""
    from opentelemetry.metrics import Observation

    def healthy(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(int(worker.health().ok))

    def unverified(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(worker.health().unverified_messages)

    meter.create_observable_gauge(
        "leasequeue.worker.healthy", [healthy], "", "1: it is healthy, as /ready says"
    )
    meter.create_observable_counter(
        "leasequeue.worker.unverified.messages", [unverified], "", "messages that no script has published"
    )


def _metrics(worker: Worker) -> WSGIApplication:
    """Return what answers with the metrics of this process, which are recorded from now on.

    Metrics that the user's program makes with the API of OpenTelemetry are among them, unless it has set
    another provider.
    """
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.trace import TracerProvider
        from prometheus_client import (
            CollectorRegistry,
            GCCollector,
            PlatformCollector,
            ProcessCollector,
            make_wsgi_app,
        )
    except ImportError:
        return note("metrics need another package: pip install 'leasequeue[prometheus]'")
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    provider = MeterProvider([PrometheusMetricReader(True, scope_info_enabled=False, registry=registry)])
    report_health(provider.get_meter("leasequeue"), worker)
    if not isinstance(metrics.get_meter_provider(), MeterProvider):
        metrics.set_meter_provider(provider)
    if telemetry.active is None:
        traces = isinstance(trace.get_tracer_provider(), TracerProvider)
        telemetry.instrument(meter_provider=provider, traces=traces)
    return one_at_a_time(make_wsgi_app(registry))
