"""Counts and durations, by OpenTelemetry's conventions for messaging.

A record of a histogram takes the SDK 5 to 10 µs, about as long as a worker takes for a quick task. So what is
counted is counted here, and read by the SDK when it exports; and of the durations with equal attributes, at
most MAX_RECORDS are recorded in RECORDS_SECONDS.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry.metrics import Observation, get_meter

from leasequeue import telemetry
from leasequeue.errors.describing import plain
from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider

#: How many durations with equal attributes are recorded in how many seconds.
MAX_RECORDS, RECORDS_SECONDS = 20, 0.1
#: The outcome of a batch whose items have different ones.
MIXED = "mixed"
#: What the conventions call what is not named.
OTHER = "_OTHER"
#: How many classes of errors are named; those after them are `_OTHER`.
MAX_ERROR_TYPES = 100
#: How many queues are named in durations, where each has some 70 series in Prometheus, and in counts. The
#: SDK drops what exceeds 2,000 series of a metric: these are 4 tasks or outcomes of each queue.
MAX_QUEUES_TIMED, MAX_QUEUES = 100, 500
#: The upper bounds of the buckets: of calls, and of runs (s).
CALL_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
RUN_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600)

SYSTEM = "messaging.system"
QUEUE = "messaging.destination.name"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
TASK = "leasequeue.task"
OUTCOME = "leasequeue.outcome"
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

#: How often an error of the SDK at one place is logged (s).
LOG_EVERY = 60.0

P = ParamSpec("P")
T = TypeVar("T")

log = Log("leasequeue.telemetry")
_logged: dict[str, float] = {}

Attributes: TypeAlias = "dict[str, str]"


def guarded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log what a function raises, such as a sampler, and return None: no item must fail because of it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:
            now, name = time.monotonic(), function.__qualname__
            if now - _logged.get(name, -LOG_EVERY) >= LOG_EVERY:
                _logged[name] = now
                log.exception("OpenTelemetry raised an error; something was not recorded")
            return None

    return call


def one_of(outcomes: Sequence[str]) -> str:
    """Return the outcome of a run: that of all its items, or `mixed`."""
    return outcomes[0] if len(outcomes) == 1 or len({*outcomes}) == 1 else MIXED


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
            SYSTEM: "leasequeue",
            QUEUE: self.queue,
            OPERATION: self.operation,
            OPERATION_TYPE: TYPES.get(self.operation),
            TASK: self.task,
            OUTCOME: self.outcome,
            ERROR_TYPE: self.error_type,
        }
        return {name: plain(value) for name, value in named.items() if value is not None}


class _Named:
    """The first names that an attribute has; those after them are `_OTHER`."""

    def __init__(self, maximum: int, *, warns: bool = False) -> None:
        self._maximum = maximum
        self._warns = warns
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) < self._maximum:
            self._known.add(name)
            return name
        if self._warns:
            log.warning(
                "metrics name the first %d queues of this process; others are %s", self._maximum, OTHER
            )
            self._warns = False
        return OTHER


class Series:
    """The measurements with equal attributes: a count, and a duration as long as there are not too many.

    Several threads may add. The count is exact: the interpreter switches no thread within one addition.

    Attributes:
        due: When a duration may be recorded again, by `time.monotonic()`.
    """

    __slots__ = ("_histogram", "_left", "_renews", "_timed", "attributes", "count", "due", "meters")

    def __init__(self, kind: Kind, meters: Meters, histogram: Histogram | None) -> None:
        self._histogram = histogram
        #: The attributes of durations.
        self._timed: Attributes = {}
        if histogram is not None:
            self._timed = kind._replace(queue=meters.name_timed(kind.queue)).attributes()
        self.attributes = kind.attributes()
        self.meters = meters
        self.count = 0
        self.due = 0.0
        #: How many durations may be recorded until `_renews`.
        self._left = MAX_RECORDS
        self._renews = time.monotonic() + RECORDS_SECONDS

    def add(self, count: int, seconds: float, now: float) -> None:
        """Count, and record a duration unless there were too many before."""
        self.count += count
        if now >= self.due:
            self.record(seconds, now)

    @guarded
    def record(self, seconds: float, now: float) -> None:
        """Record a duration that is due."""
        if now >= self._renews:
            self._left, self._renews = MAX_RECORDS, now + RECORDS_SECONDS
        self._left -= 1
        self.due = 0.0 if self._left > 0 else self._renews
        if self._histogram is not None:
            self._histogram.record(seconds, self._timed)


class _Family:
    """A counter, a histogram, or both of the same attributes."""

    def __init__(self, meters: Meters, histogram: Histogram | None = None) -> None:
        self._meters = meters
        self._histogram = histogram
        self._series: dict[Kind, Series] = {}
        self._of_calls: dict[tuple[str, str], Series] = {}

    def __getitem__(self, kind: Kind) -> Series:
        found = self._series.get(kind)
        if found is None:
            kind = kind._replace(queue=self._meters.name_queue(kind.queue))
            found = self._series.get(kind)
        if found is None:
            found = self._series.setdefault(kind, Series(kind, self._meters, self._histogram))
        return found

    def of_calls(self, queue: str, operation: str) -> Series:
        """Return the measurements of calls without an error, without making a `Kind` for each."""
        known = self._meters.name_queue(queue), operation  # there may be any number of others
        found = self._of_calls.get(known)
        if found is None:
            found = self._of_calls[known] = self[Kind(*known)]
        return found

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        series = [*self._series.values()]
        return [Observation(one.count, one.attributes) for one in series if one.count]


class Meters:
    """The metrics of one meter provider. They continue when telemetry is switched off and on again.

    Attributes:
        runs: Runs of handlers; the counts are of their items.
    """

    def __init__(self, meter: Meter) -> None:
        self._name_error = _Named(MAX_ERROR_TYPES)
        #: Return the queue that the attributes of counts, and of durations, name.
        self.name_queue = _Named(MAX_QUEUES, warns=True)
        self.name_timed = _Named(MAX_QUEUES_TIMED)
        self.sent, self.leased = _Family(self), _Family(self)
        self.calls = _Family(
            self,
            meter.create_histogram(
                "messaging.client.operation.duration",
                unit="s",
                description="How long calls of a queue take, without waiting for items.",
                explicit_bucket_boundaries_advisory=CALL_BUCKETS,
            ),
        )
        self.runs = _Family(
            self,
            meter.create_histogram(
                "messaging.process.duration",
                unit="s",
                description="How long runs of handlers take.",
                explicit_bucket_boundaries_advisory=RUN_BUCKETS,
            ),
        )
        for name, unit, description, family in (
            ("messaging.client.sent.messages", "{message}", "Items that were added.", self.sent),
            ("messaging.client.consumed.messages", "{message}", "Items that were leased.", self.leased),
            ("leasequeue.processed.items", "{item}", "Items whose run has ended.", self.runs),
        ):
            meter.create_observable_counter(name, [family.observe], unit=unit, description=description)
        meter.create_observable_up_down_counter(
            "leasequeue.runs.active", [self._active_runs], unit="{run}", description="Runs in progress."
        )

    def run_series(self, queue: str, task: str, outcome: str, error: BaseException | None = None) -> Series:
        """Return the measurements of runs with such an outcome."""
        return self.runs[Kind(queue, "process", task, outcome, self.error_type(error))]

    def ran(
        self,
        queue: str,
        task: str,
        outcomes: Sequence[str],
        error: BaseException | None,
        seconds: float,
        now: float,
    ) -> None:
        """Record the end of a run, and count its items by their outcomes."""
        outcome = one_of(outcomes)
        run = self.run_series(queue, task, outcome, error)
        run.add(0 if outcome == MIXED else len(outcomes), seconds, now)
        for one, count in Counter(outcomes).items() if outcome == MIXED else ():
            self.run_series(queue, task, one, error).count += count

    def error_type(self, error: BaseException | None) -> str | None:
        """Return the name of an error's class, or `_OTHER` if there are too many."""
        return None if error is None else self._name_error(type(error).__name__)

    def _active_runs(self, _: CallbackOptions) -> Iterator[Observation]:
        if telemetry.active is None:
            return
        counts: Counter[tuple[str, str]] = Counter()
        for runs in telemetry.active_runs():
            for (queue, task), count in runs.items():
                counts[self.name_queue(queue), task] += count
        for (queue, task), count in counts.items():
            yield Observation(count, {SYSTEM: "leasequeue", QUEUE: plain(queue), TASK: plain(task)})


#: A provider refuses a second instrument of a name.
_by_provider: WeakKeyDictionary[MeterProvider, Meters] = WeakKeyDictionary()


def meters_of(provider: MeterProvider, name: str, version: str) -> Meters:
    """Return the metrics of a provider."""
    found = _by_provider.get(provider)
    if found is None:
        found = _by_provider[provider] = Meters(get_meter(name, version, provider))
    return found
