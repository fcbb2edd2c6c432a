"""The exporter of `leasequeue stats`: samples queues again and again, and answers with their metrics."""

from __future__ import annotations

import asyncio
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.registry import Collector

from leasequeue.errors import LeasequeueError
from leasequeue.errors.describing import plain, text_of
from leasequeue.errors.log import Log
from leasequeue.keys import check_prefix
from leasequeue.queue.shards.opening import find_whole_queues, open_queue
from leasequeue.wire.discovery import MAX_KEYS, MAX_QUEUES, client_at
from leasequeue.wire.endpoints import client_named, close_client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from wsgiref.types import StartResponse, WSGIEnvironment

    from leasequeue.queue import AsyncWorkQueue, QueueStats, WorkerStats
    from leasequeue.wire.endpoints import Client

#: The attributes of the measurements.
QUEUE, WORKER = "messaging.destination.name", "leasequeue.worker"
#: How long to wait until queues are looked for again, if none are named: so many times as long as it took,
#: within these bounds (s).
FIND_TIMES, FIND_OFTEN, FIND_SECONDS = 100.0, 15.0, 300.0
#: How many queues are sampled at once, and for how long one may take (s).
SAMPLED_AT_ONCE, SAMPLE_SECONDS = 16, 10.0
#: For how long a queue has the shards that were noted for it, which may be made later (s).
SHARDS_SECONDS = 60.0
#: A sample counts for so many intervals, and at least so long (s).
KEPT_INTERVALS, KEPT_SECONDS = 3, 30.0

#: Values, each with further attributes.
Values: TypeAlias = "Sequence[tuple[float, Mapping[str, str]]]"

log = Log("leasequeue.stats")


@dataclass(frozen=True, kw_only=True)
class QueueSample:
    """The last sample of a queue, and when it was taken, by `time.monotonic`."""

    stats: QueueStats
    at: float


class Exporter:
    """Samples queues, and answers with their metrics."""

    def __init__(self, url: str, names: Iterable[str], *, every: float) -> None:
        self._url = url
        self._names = [*dict.fromkeys(map(check_prefix, names))]
        self._finds = not self._names
        self._every = every
        self._kept = max(KEPT_SECONDS, KEPT_INTERVALS * every)
        self._client, self._is_known = client_named(url), False
        #: The queues that are open, and when they were opened, by `time.monotonic`.
        self._queues: dict[str, tuple[AsyncWorkQueue, float]] = {}
        #: The last sample of each queue; None: it could not be sampled. Other threads read it.
        self._samples: dict[str, QueueSample | None] = {}
        self._errors: dict[str, str] = {}
        #: Whether all queues of the server were found, the last time that they were looked for.
        self._complete = True
        self._turned_at = time.monotonic()

    async def run(self) -> None:
        """Sample the queues until cancelled."""
        find_at = -math.inf
        while True:
            began = time.monotonic()
            if self._finds and began >= find_at and await self._find():
                took = time.monotonic() - began
                find_at = began + min(max(FIND_TIMES * took, FIND_OFTEN), FIND_SECONDS)
            await self.sample_all()
            self._turned_at = time.monotonic()
            await asyncio.sleep(max(0.05, began + self._every - time.monotonic()))

    async def sample_all(self) -> None:
        """Sample each queue once."""
        limit = asyncio.Semaphore(SAMPLED_AT_ONCE)

        async def sample(name: str) -> None:
            async with limit:
                await self._sample(name)

        await asyncio.gather(*map(sample, self._names))

    async def close(self) -> None:
        """Close the connections."""
        for queue, _ in self._queues.values():
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
        return registry_of([_target(), *metrics_of(samples)])

    async def _opened(self, name: str) -> AsyncWorkQueue:
        """Return a queue, with the shards that are noted for it, as they were a short while ago."""
        now = time.monotonic()
        known = self._queues.get(name)
        if known is not None and now < known[1] + SHARDS_SECONDS:
            return known[0]
        queue = await open_queue(name, await self._server(), reply_timeout=SAMPLE_SECONDS)
        self._queues[name] = queue, now
        if known is not None:
            await known[0].close()
        return queue

    async def _server(self) -> Client:
        if not self._is_known:
            self._client, self._is_known = await client_at(self._url), True
        return self._client

    async def _find(self) -> bool:
        """Look for queues; return whether that succeeded."""
        try:
            found = await find_whole_queues(await self._server(), max_keys=MAX_KEYS, max_queues=MAX_QUEUES)
        except LeasequeueError as error:
            self._note("", text_of(error))
            return False
        self._note("", None)
        if not found.complete and self._complete:
            log.warning(
                "this server has more queues or keys than are looked through: %d queues are exported; "
                "name the others in a separate exporter",
                len(found.names),
            )
        self._complete = found.complete
        self._names = found.names
        self._samples = {name: one for name, one in self._samples.items() if name in {*found.names}}
        for name in self._queues.keys() - {*found.names}:
            queue, _ = self._queues.pop(name)
            await queue.close()
        return True

    async def _sample(self, name: str) -> None:
        try:
            async with asyncio.timeout(SAMPLE_SECONDS):
                stats = await (await self._opened(name)).stats()
        except (LeasequeueError, TimeoutError) as error:
            self._samples = {**self._samples, name: None}
            self._note(name, text_of(error) if str(error) else f"no answer within {SAMPLE_SECONDS:g} s")
            return
        self._samples = {**self._samples, name: QueueSample(stats=stats, at=time.monotonic())}
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


class Value(NamedTuple):
    """One value of a metric."""

    value: float
    attributes: Mapping[str, str]


def metric(
    name: str, unit: str, description: str, values: Iterable[Value], *, is_counter: bool = False
) -> Metric:
    """Return a metric, under the names that the exporter of OpenTelemetry gives it and its attributes.

    The unit is `s`, or empty. Attributes may be names that others chose. That exporter is not used: it drops
    what exceeds 2,000 series of a metric.
    """
    full = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
    found = Metric(full, description, "counter" if is_counter else "gauge")
    for value, attributes in values:
        labels = {key.replace(".", "_"): plain(text) for key, text in attributes.items()}
        found.add_sample(full + ("_total" if is_counter else ""), labels, value)
    return found


def registry_of(metrics: Iterable[Metric]) -> CollectorRegistry:
    """Return a registry of the metrics that have values."""
    registry = CollectorRegistry()
    registry.register(_Collected([one for one in metrics if one.samples]))
    return registry


def _target() -> Metric:
    """Return the metric that names the service, as the exporter of OpenTelemetry does."""
    found = Metric("target_info", "The service that these metrics are of", "gauge")
    name = os.environ.get("OTEL_SERVICE_NAME") or "leasequeue-stats"
    found.add_sample("target_info", {"service_name": plain(name)}, 1)
    return found


class _Collected(Collector):
    """See `Collector`: metrics that were collected before."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def metrics_of(samples: Mapping[str, QueueStats | None]) -> Iterator[Metric]:
    """Yield the metrics of queues and of their workers."""
    yield metric(
        "leasequeue.queue.up",
        "",
        "1: the queue could be sampled",
        (Value(int(stats is not None), {QUEUE: name}) for name, stats in samples.items()),
    )
    found = [one for one in samples.values() if one is not None]
    # A worker of several queues says the same on each of them; a dead one may be registered again.
    workers = {one.id: one for stats in found for one in stats.workers if not one.dead}
    for name, unit, text, is_counter, of_queue in _OF_QUEUES:
        values = (Value(value, {QUEUE: one.queue, **more}) for one in found for value, more in of_queue(one))
        yield metric(f"leasequeue.queue.{name}", unit, text, values, is_counter=is_counter)
    for name, unit, text, is_counter, of_worker in _OF_WORKERS:
        # Workers of one name, as of one host, are one series.
        by_name = {one.name: Value(of_worker(one), {WORKER: one.name}) for one in workers.values()}
        yield metric(f"leasequeue.worker.{name}", unit, text, by_name.values(), is_counter=is_counter)


def _items(one: QueueStats) -> Values:
    return [(count, {"state": state}) for state, count in one.counts._asdict().items()]


def _waits(one: QueueStats) -> Values:
    statistics = ("mean", "median", "longest") if one.wait.samples else ()
    return [(getattr(one.wait, name), {"statistic": name}) for name in statistics]


def _worker_counts(one: QueueStats) -> Values:
    alive = one.workers_alive
    return [(alive, {"state": "alive"}), (len(one.workers) - alive, {"state": "dead"})]


def _error(one: QueueStats) -> Values:
    return [] if one.oldest_age_error is None else [(one.oldest_age_error, {})]


#: Of the metrics of a queue: the name, the unit, a description, whether it is a counter, and the values.
_OF_QUEUES: tuple[tuple[str, str, str, bool, Callable[[QueueStats], Values]], ...] = (
    ("items", "", "Items by state", False, _items),
    ("oldest.age", "s", "How long the oldest item has waited", False, lambda one: [(one.oldest_age, {})]),
    ("oldest.age.error", "s", "By how much longer it may have waited", False, _error),
    ("wait", "s", "How long items waited that were leased", False, _waits),
    ("paused", "", "1: the queue is paused", False, lambda one: [(int(one.paused is not None), {})]),
    ("workers", "", "Registered workers by state", False, _worker_counts),
    ("leases", "", "Leases given", True, lambda one: [(one.leases, {})]),
)
#: The same of those of a worker, which have one value.
_OF_WORKERS: tuple[tuple[str, str, str, bool, Callable[[WorkerStats], float]], ...] = (
    ("running", "", "Runs in progress", False, lambda one: one.running),
    ("concurrency", "", "Runs that it may have", False, lambda one: one.concurrency),
    ("runs", "", "Runs that have ended", True, lambda one: one.runs),
    ("failures", "", "Items that failed", True, lambda one: one.failures),
    ("run.time", "s", "Time that these runs took", True, lambda one: one.run_seconds),
)
