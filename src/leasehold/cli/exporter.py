"""The exporter of `leasehold stats`: samples queues again and again, and answers with the metrics of them."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, make_wsgi_app

from leasehold.describing import text_of
from leasehold.errors import LeaseholdError
from leasehold.log import Log
from leasehold.queue import AsyncWorkQueue
from leasehold.scripting.discovery import MAX_KEYS, MAX_QUEUES, find_queues
from leasehold.scripting.endpoints import client_of, close_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from wsgiref.types import StartResponse, WSGIEnvironment

    from opentelemetry.metrics import CallbackOptions, Meter

    from leasehold.queue import QueueStats, WorkerStats

#: The attributes of the measurements.
QUEUE, WORKER = "messaging.destination.name", "leasehold.worker"
#: How often to look for queues, if none are named (s).
FIND_SECONDS = 300.0
#: How many queues are sampled at once, and for how long one may take (s).
SAMPLED_AT_ONCE, SAMPLE_SECONDS = 16, 10.0
#: A sample counts for so many intervals, and at least so long (s).
KEPT_INTERVALS, KEPT_SECONDS = 3, 30.0

Values: TypeAlias = "Callable[[], Iterable[Observation]]"
#: The name, the unit, a description and the values.
Metric: TypeAlias = tuple[str, str, str, Values]

log = Log("leasehold.stats")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The last sample of a queue, and when it was taken, by `time.monotonic`."""

    stats: QueueStats
    at: float


class Exporter:
    """Samples queues, and answers with their metrics.

    Args:
        url: The server's URL.
        names: The queues' names; none: all on the server.
        every: Seconds between two samples.
    """

    def __init__(self, url: str, names: Iterable[str], *, every: float) -> None:
        self._url = url
        self._finds = not (known := [*names])
        self._every = every
        self._kept = max(KEPT_SECONDS, KEPT_INTERVALS * every)
        self._client = client_of(url)
        self._queues: dict[str, AsyncWorkQueue] = {}
        #: The last sample of each queue; None: it could not be sampled. Other threads read it.
        self._samples: dict[str, Sample | None] = {}
        self._errors: dict[str, str] = {}
        self._turned_at = time.monotonic()
        self._open(known)

    async def run(self) -> None:
        """Sample the queues until cancelled."""
        found_at = -math.inf
        while True:
            began = time.monotonic()
            if self._finds and began - found_at >= FIND_SECONDS and await self._find():
                found_at = began
            await self.sample_all()
            self._turned_at = time.monotonic()
            await asyncio.sleep(max(0.05, began + self._every - time.monotonic()))

    async def sample_all(self) -> None:
        """Sample each queue once."""
        limit = asyncio.Semaphore(SAMPLED_AT_ONCE)

        async def sample(name: str) -> None:
            async with limit:
                await self._sample(name)

        await asyncio.gather(*map(sample, [*self._queues]))

    async def close(self) -> None:
        """Close the connections."""
        for queue in self._queues.values():
            await queue.close()
        await close_client(self._client)

    def problems(self) -> Iterable[str]:
        """Yield why the exporter counts as dead, if it does; callable from any thread."""
        late = time.monotonic() - self._turned_at
        if late > self._kept + SAMPLE_SECONDS:
            yield f"no queue was sampled for {late:.0f} s"

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer with the metrics."""
        return [*make_wsgi_app(self.registry())(environ, start_response)]

    def registry(self) -> CollectorRegistry:
        """Return the metrics of now."""
        fresh = time.monotonic() - self._kept
        samples = {
            name: None if one is None or one.at < fresh else one.stats for name, one in self._samples.items()
        }
        return registry_of(Observed(samples).report)

    # -------------------------------------------------------------------------- inside

    def _open(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._queues:
                self._queues[name] = AsyncWorkQueue(name, self._client, reply_timeout=SAMPLE_SECONDS)

    async def _find(self) -> bool:
        """Look for queues; return whether that succeeded."""
        try:
            found = await find_queues(self._url, max_keys=MAX_KEYS, max_queues=MAX_QUEUES)
        except LeaseholdError as error:
            self._note("", text_of(error))
            return False
        self._note("", None)
        self._open(found.names)
        for name in self._queues.keys() - {*found.names}:
            await self._queues.pop(name).close()
            self._samples = {one: sample for one, sample in self._samples.items() if one != name}
        return True

    async def _sample(self, name: str) -> None:
        try:
            async with asyncio.timeout(SAMPLE_SECONDS):
                stats = await self._queues[name].stats()
        except (LeaseholdError, TimeoutError) as error:
            self._samples = {**self._samples, name: None}
            self._note(name, text_of(error) if str(error) else f"no answer within {SAMPLE_SECONDS:g} s")
            return
        self._samples = {**self._samples, name: Sample(stats=stats, at=time.monotonic())}
        self._note(name, None)

    def _note(self, name: str, error: str | None) -> None:
        """Log the first error of a queue, and its end."""
        what = name or "the server"
        if error is not None and name not in self._errors:
            log.warning("%s cannot be sampled: %s", what, error)
        if error is None and name in self._errors:
            log.info("%s can be sampled again", what)
        if error is None:
            self._errors.pop(name, None)
        else:
            self._errors[name] = error


def registry_of(report: Callable[[Meter], None]) -> CollectorRegistry:
    """Return the metrics that a function reports to a meter.

    The meter is made anew for each request: it would keep a series for each worker that ever was.
    """
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    provider = MeterProvider([reader], shutdown_on_exit=False)
    report(provider.get_meter("leasehold"))
    return registry


class Observed:
    """Reports samples of queues as instruments of OpenTelemetry.

    Args:
        samples: The statistics by queue; None: the queue could not be sampled.
    """

    def __init__(self, samples: Mapping[str, QueueStats | None]) -> None:
        self._samples = samples
        self._stats = [one for one in samples.values() if one is not None]
        # A worker of several queues says the same on each of them; a dead one may be registered anew.
        workers = {one.id: one for stats in self._stats for one in stats.workers if not one.dead}
        self._workers = list(workers.values())

    def report(self, meter: Meter) -> None:
        """Make the instruments."""
        of, by_worker = self._of, self._by_worker
        gauges: list[Metric] = [
            ("queue.up", "", "1: the queue could be sampled", self._up),
            ("queue.items", "", "Items by state", self._items),
            ("queue.oldest.age", "s", "How long the oldest item has waited", of(lambda one: one.oldest_age)),
            ("queue.oldest.age.error", "s", "By how much longer it may have waited", self._errors),
            ("queue.wait", "s", "How long items waited that were leased", self._waits),
            ("queue.paused", "", "1: the queue is paused", of(lambda one: int(one.paused is not None))),
            ("queue.workers", "", "Registered workers by state", self._worker_counts),
            ("worker.running", "", "Runs in progress", by_worker(lambda one: one.running)),
            ("worker.concurrency", "", "Runs that it may have", by_worker(lambda one: one.concurrency)),
        ]
        counters: list[Metric] = [
            ("queue.leases", "", "Leases given", of(lambda one: one.leases)),
            ("worker.runs", "", "Runs that have ended", by_worker(lambda one: one.runs)),
            ("worker.failures", "", "Items that failed", by_worker(lambda one: one.failures)),
            ("worker.run.time", "s", "Time that these runs took", by_worker(lambda one: one.run_seconds)),
        ]
        for name, unit, text, values in gauges:
            meter.create_observable_gauge(f"leasehold.{name}", [_callback(values)], unit, text)
        for name, unit, text, values in counters:
            meter.create_observable_counter(f"leasehold.{name}", [_callback(values)], unit, text)

    def _up(self) -> Iterator[Observation]:
        for name, stats in self._samples.items():
            yield Observation(int(stats is not None), {QUEUE: name})

    def _items(self) -> Iterator[Observation]:
        for one in self._stats:
            for state, count in one.counts._asdict().items():
                yield Observation(count, {QUEUE: one.queue, "state": state})

    def _errors(self) -> Iterator[Observation]:
        for one in self._stats:
            if one.oldest_age_error is not None:
                yield Observation(one.oldest_age_error, {QUEUE: one.queue})

    def _waits(self) -> Iterator[Observation]:
        for one in self._stats:
            for statistic in ("mean", "median", "longest") if one.wait.samples else ():
                yield Observation(getattr(one.wait, statistic), {QUEUE: one.queue, "statistic": statistic})

    def _worker_counts(self) -> Iterator[Observation]:
        for one in self._stats:
            alive = one.workers_alive
            yield Observation(alive, {QUEUE: one.queue, "state": "alive"})
            yield Observation(len(one.workers) - alive, {QUEUE: one.queue, "state": "dead"})

    def _of(self, value: Callable[[QueueStats], float]) -> Values:
        return lambda: (Observation(value(one), {QUEUE: one.queue}) for one in self._stats)

    def _by_worker(self, value: Callable[[WorkerStats], float]) -> Values:
        return lambda: (Observation(value(one), {WORKER: one.name}) for one in self._workers)


def _callback(values: Values) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return values()

    return observe
