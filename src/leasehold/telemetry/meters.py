"""Counts and durations, by OpenTelemetry's conventions for messaging.

A record of a histogram takes the SDK 5 to 10 µs, which slows down quick runs. So what is counted is counted
here, and read by the SDK when it exports; and of the durations with equal attributes, at most
RECORDS_PER_SECOND are recorded, evenly over the second.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Observation, get_meter

from leasehold import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider

#: How many durations with equal attributes are recorded in a second, and at once.
RECORDS_PER_SECOND, BURST = 1000, 200
#: How many classes of errors are named; those after them are `_OTHER`, as the conventions call it.
MAX_ERROR_TYPES = 100
#: The upper bounds of the buckets: of calls, and of runs (s).
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RUN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

SYSTEM = "messaging.system"
QUEUE = "messaging.destination.name"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
TASK = "leasehold.task"
OUTCOME = "leasehold.outcome"
ERROR_TYPE = "error.type"
#: What the conventions call our operations; the others are none of theirs.
TYPES = {
    "add": "send",
    "lease": "receive",
    "process": "process",
    "complete": "settle",
    "release": "settle",
    "fail": "settle",
}

Attributes: TypeAlias = "dict[str, str]"


class Kind(NamedTuple):
    """What a measurement is about: the attributes that it has, None without."""

    queue: str
    operation: str
    task: str | None = None
    outcome: str | None = None
    error_type: str | None = None

    def attributes(self) -> Attributes:
        """Return the attributes by their names."""
        named = {
            SYSTEM: "leasehold",
            QUEUE: self.queue,
            OPERATION: self.operation,
            OPERATION_TYPE: TYPES.get(self.operation),
            TASK: self.task,
            OUTCOME: self.outcome,
            ERROR_TYPE: self.error_type,
        }
        return {name: value for name, value in named.items() if value is not None}


class _Series:
    """The measurements with equal attributes: a count, and how many durations may be recorded."""

    __slots__ = ("attributes", "count", "left", "refilled")

    def __init__(self, kind: Kind) -> None:
        self.attributes = kind.attributes()
        self.count = 0
        self.left = float(BURST)
        self.refilled = time.monotonic()

    def may_record(self, now: float) -> bool:
        """Return whether one more duration is recorded."""
        if self.left < 1:
            self.left = min(BURST, self.left + (now - self.refilled) * RECORDS_PER_SECOND)
            self.refilled = now
            if self.left < 1:
                return False
        self.left -= 1
        return True


class _Family:
    """A counter, a histogram, or both of the same attributes."""

    def __init__(self, histogram: Histogram | None = None) -> None:
        self._histogram = histogram
        self._series: dict[Kind, _Series] = {}
        self._lock = threading.Lock()

    def add(self, kind: Kind, count: int = 1, seconds: float | None = None) -> None:
        """Count, and record a duration unless there were too many in this second."""
        with self._lock:
            series = self._series.get(kind)
            if series is None:
                series = self._series[kind] = _Series(kind)
            series.count += count
            recorded = seconds is not None and series.may_record(time.monotonic())
        if recorded and seconds is not None and self._histogram is not None:
            self._histogram.record(seconds, series.attributes)

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """Return the counts."""
        with self._lock:
            return [Observation(one.count, one.attributes) for one in self._series.values() if one.count]


class Meters:
    """The metrics of one meter provider. They go on when telemetry is switched off and on again.

    Attributes:
        sent: Items that were added.
        leased: Items that were leased.
        calls: Calls of the server.
        runs: Runs of handlers; the counts are of their items.
    """

    def __init__(self, meter: Meter) -> None:
        self._observed = False
        self._error_types: set[str] = set()
        self.sent, self.leased = _Family(), _Family()
        self.calls = _Family(
            meter.create_histogram(
                "messaging.client.operation.duration",
                unit="s",
                description="How long calls of a queue take, without waiting for items.",
                explicit_bucket_boundaries_advisory=CALL_BUCKETS,
            )
        )
        self.runs = _Family(
            meter.create_histogram(
                "messaging.process.duration",
                unit="s",
                description="How long runs of handlers take.",
                explicit_bucket_boundaries_advisory=RUN_BUCKETS,
            )
        )
        for name, unit, description, family in (
            ("messaging.client.sent.messages", "{message}", "Items that were added.", self.sent),
            ("messaging.client.consumed.messages", "{message}", "Items that were leased.", self.leased),
            ("leasehold.processed.items", "{item}", "Items whose run has ended.", self.runs),
        ):
            meter.create_observable_counter(name, [family.observe], unit=unit, description=description)
        meter.create_observable_up_down_counter(
            "leasehold.runs.active", [self._active_runs], unit="{run}", description="Runs that go on now."
        )

    def error_type(self, name: str) -> str:
        """Return the name of an error's class, or `_OTHER` if there are too many."""
        known = self._error_types
        if name not in known:
            if len(known) >= MAX_ERROR_TYPES:
                return "_OTHER"
            known.add(name)
        return name

    def _active_runs(self, _: CallbackOptions) -> Iterator[Observation]:
        if telemetry.active is None:
            return
        counts: dict[tuple[str, str], int] = {}
        for source in telemetry.run_sources():
            for key, count in source.active_runs().items():
                counts[key] = counts.get(key, 0) + count
        for (queue, task), count in counts.items():
            yield Observation(count, {SYSTEM: "leasehold", QUEUE: queue, TASK: task})


#: A provider refuses a second instrument of a name.
_by_provider: WeakKeyDictionary[MeterProvider, Meters] = WeakKeyDictionary()


def meters_of(provider: MeterProvider, name: str, version: str) -> Meters:
    """Return the metrics of a provider."""
    found = _by_provider.get(provider)
    if found is None:
        found = _by_provider[provider] = Meters(get_meter(name, version, provider))
    return found
