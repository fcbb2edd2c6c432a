"""What `leasequeue autoscale` answers over HTTP: the last report, its units for other scalers, metrics."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from leasequeue.autoscale.config import address
from leasequeue.autoscale.report import metric_values
from leasequeue.cli.probes import AddressUnusable, ProbeServer, document, note, one_at_a_time, probe
from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import Metric

    from leasequeue.autoscale import Config
    from leasequeue.autoscale.report import MetricValue, PassReport

#: A report counts for so many times the interval of passes.
FRESH_PASSES = 5
#: The bounds of the interval at which a copy looks for a new report (s).
SHORTEST_LOOK, LONGEST_LOOK = 0.2, 5.0
#: For how long the event loop may stand still before the process counts as dead (s).
STILL_SECONDS = 60.0

log = Log("leasequeue.autoscale")


class ReportServer:
    """Answers over HTTP with the last report, whichever copy of the autoscaler made it.

    It answers from threads of its own, from the report that was read last.
    """

    def __init__(self, config: Config, read: Callable[[], Awaitable[PassReport | None]]) -> None:
        self._read = read
        self._look = min(max(config.every / 2, SHORTEST_LOOK), LONGEST_LOOK)
        self._fresh = FRESH_PASSES * config.every
        #: The last report, and when it was made, by `time.monotonic`. Other threads read it.
        self._last: tuple[PassReport, float] | None = None
        self._turned_at = time.monotonic()
        self._problem = ""
        host, port = address(config.http)
        routes: dict[str, WSGIApplication] = {
            "/live": probe(self._stuck),
            "/health": probe(self._stale),
            "/report": document(lambda: self._document(self._report_of)),
            "/metrics": self._metrics(),
        }
        for name, deployment in config.deployments.items():
            for tier in deployment.tiers:
                routes[f"/units/{quote(name)}/{quote(tier)}"] = self._units(name, tier)
        self._server = ProbeServer(host, port, routes)

    @property
    def url(self) -> str:
        """The address as a URL."""
        return self._server.url

    def start(self) -> None:
        """Listen; while another process uses the address, wait until it is free."""
        try:
            self._server.start()
        except AddressUnusable:
            self._server.start_soon()  # it logs why
        else:
            log.info("serving %s/report, /units, /metrics, /health and /live", self.url)

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    def show(self, report: PassReport) -> None:
        """Answer with a report from now on. One of a pass that could not be finished has no number."""
        if report.number:
            self._last = report, time.monotonic() - report.age

    async def run(self) -> None:
        """Look for new reports, until cancelled."""
        while True:
            try:
                report = await self._read()
            except LeasequeueError as error:
                # The error has the server's address, which is not for anyone who can ask.
                if not self._problem:
                    log.warning("the report cannot be read: %s", error)
                self._problem = f"the report cannot be read: {type(error).__name__}, see the log"
            else:
                self._problem = ""
                if report is not None:
                    self.show(report)
            self._turned_at = time.monotonic()
            await asyncio.sleep(self._look)

    # -------------------------------------------------------------------------- answers

    def _stuck(self) -> Iterable[str]:
        late = time.monotonic() - self._turned_at
        if late > STILL_SECONDS + self._look:
            yield f"the event loop has stood still for {late:.0f} s"

    def _stale(self) -> Iterable[str]:
        """Yield why the last report does not count."""
        if self._last is None:
            yield "no pass has ended yet"
        elif (age := time.monotonic() - self._last[1]) > self._fresh:
            yield f"the last pass began {age:.0f} s ago"
        else:
            return
        if self._problem:
            yield self._problem

    def _document(self, read: Callable[[PassReport], dict[str, Any] | None]) -> tuple[bool, dict[str, Any]]:
        last, problems = self._last, [*self._stale()]
        if last is None or problems:
            return False, {"error": "; ".join(problems)}
        found = read(last[0])
        if found is None:
            return False, {"error": "the last pass, of another configuration, did not know this tier"}
        return True, found

    def _report_of(self, report: PassReport) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(report.to_json())
        # Back ends quote servers and programs: that is not for anyone who can ask.
        errors = [{"part": one.part, "problem": "see the log"} for one in report.errors]
        return {**said, "errors": errors, "age": self._age()}

    def _age(self) -> float | None:
        return None if self._last is None else round(time.monotonic() - self._last[1], 3)

    def _units(self, deployment: str, tier: str) -> WSGIApplication:
        def units(report: PassReport) -> dict[str, Any] | None:
            for one in report.tiers:
                if (one.deployment, one.tier) == (deployment, tier):
                    return {"wanted": one.wanted, "requested": one.requested, "ready": one.ready}
            return None

        return document(lambda: self._document(units))

    def _metrics(self) -> WSGIApplication:
        try:
            from prometheus_client import make_wsgi_app

            from leasequeue.cli.exporter import registry_of
        except ImportError:
            return note("metrics need another package: pip install 'leasequeue[prometheus]'")

        def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
            return [*make_wsgi_app(registry_of([*self._reported()]))(environ, start_response)]

        return one_at_a_time(answer)

    def _reported(self) -> Iterator[Metric]:
        from leasequeue.cli.exporter import Value, metric

        fresh = not [*self._stale()]
        by_name: dict[str, list[MetricValue]] = {}
        for one in metric_values(self._last[0]) if fresh and self._last is not None else ():
            by_name.setdefault(one.name, []).append(one)
        for name, values in by_name.items():
            found = [Value(one.value, one.attributes) for one in values]
            unit = "s" if values[0].unit == "s" else ""
            yield metric(name, unit, values[0].description, found)
        up = "1: a pass began not long ago; without it there are no other values"
        yield metric("leasequeue.autoscale.up", "", up, [Value(int(fresh), {})])
