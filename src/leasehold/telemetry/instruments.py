"""Records traces and metrics through the API of OpenTelemetry, by its conventions for messaging.

What the user's SDK raises, for example a sampler of its own, never reaches a call or a run: it is logged.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from opentelemetry import context as context_api
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import SpanKind, get_tracer, set_span_in_context

from leasehold import telemetry
from leasehold.describing import class_of
from leasehold.log import Log
from leasehold.telemetry import spans
from leasehold.telemetry.meters import (
    OPERATION,
    OPERATION_TYPE,
    OUTCOME,
    QUEUE,
    SYSTEM,
    TASK,
    Kind,
    meters_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from leasehold.telemetry.meters import Meters

P = ParamSpec("P")
T = TypeVar("T")

#: The name of the tracer and of the meter.
SCOPE = "leasehold"
MESSAGE_ID, MESSAGE_COUNT = "messaging.message.id", "messaging.batch.message_count"
ATTEMPT = "leasehold.attempt"
#: The outcome of a batch whose items have different ones.
MIXED = "mixed"
#: How often an error of the SDK is logged (s).
LOG_EVERY = 60.0

log = Log("leasehold.telemetry")
_logged: dict[str, float] = {}


def _guarded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log what the SDK raises, and return None: an item must not fail because its trace does."""

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
        self.tracer = get_tracer(SCOPE, number, tracer_provider) if traces else None
        self.meters: Meters | None = None
        if metrics:
            self.meters = meters_of(meter_provider or get_meter_provider(), SCOPE, number)

    @_guarded
    def leased(self, queue: str, count: int) -> None:
        """Note that items were leased."""
        if self.meters is not None and count > 0:
            self.meters.leased.add(Kind(queue, "lease"), count)

    @_guarded
    def added(self, queue: str, count: int, error: BaseException | None = None) -> None:
        """Note that items were added, or that it failed."""
        if self.meters is not None and count > 0:
            kind = None if error is None else self.meters.error_type(class_of(error))
            task = telemetry.task_added.get()
            self.meters.sent.add(Kind(queue, "add", task, error_type=kind), count)

    @_guarded
    def called(self, queue: str, operation: str, seconds: float, error: BaseException | None) -> None:
        """Note how long a call has taken."""
        if self.meters is not None:
            kind = None if error is None else self.meters.error_type(class_of(error))
            self.meters.calls.add(Kind(queue, operation, error_type=kind), 1, seconds)

    @_guarded
    def current_trace(self) -> bytes | None:
        """Return the `traceparent` of the current span, for another process; None: there is none."""
        return None if self.tracer is None else spans.current()

    def producer(self, queue: str, count: int, item_id: bytes) -> Producer | None:
        """Begin the span of a call that adds items; None: there are no traces."""
        return None if self.tracer is None else self._producer(self.tracer, queue, count, item_id)

    @_guarded
    def _producer(self, tracer: Tracer, queue: str, count: int, item_id: bytes) -> Producer:
        attributes = _attributes(queue, "add", telemetry.task_added.get())
        _set_ids(attributes, [item_id.decode(errors="replace")], count)
        return Producer(spans.begin(tracer, SpanKind.PRODUCER, f"add {queue}", attributes, []))

    @_guarded
    def run(
        self, queue: str, task: str, item_ids: Sequence[str], traces: Sequence[bytes | None], attempt: int
    ) -> ObservedRun:
        """Begin to observe a run, whose span is the current one until `ObservedRun.end`."""
        span = None
        if self.tracer is not None:
            attributes = _attributes(queue, "process", task)
            attributes[ATTEMPT] = attempt
            _set_ids(attributes, item_ids, len(item_ids))
            links = spans.links_to(traces)
            span = spans.begin(self.tracer, SpanKind.CONSUMER, f"process {queue}", attributes, links)
        return ObservedRun(self.meters, queue, task, span)


class Producer:
    """The span of a call that adds items.

    Attributes:
        trace: The `traceparent` to keep with the items; None: the span is not sampled.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        context = span.get_span_context()
        self.trace = spans.written(context) if context.is_valid and context.trace_flags.sampled else None

    @_guarded
    def end(self, error: BaseException | None = None) -> None:
        """End the span."""
        if error is not None:
            spans.fail(self._span, error)
        self._span.end()


class ObservedRun:
    """The span and the duration of a run. While it goes on, its span is the current one."""

    def __init__(self, meters: Meters | None, queue: str, task: str, span: Span | None) -> None:
        self._meters = meters
        self._queue = queue
        self._task = task
        self._span = span
        self._token = None if span is None else context_api.attach(set_span_in_context(span))
        self._began = time.monotonic()

    @_guarded
    def end(self, outcomes: Sequence[str], error: BaseException | None) -> None:
        """Record the end of the run.

        Args:
            outcomes: What its items are counted as, at least one.
            error: Why it failed; None: it has not.
        """
        seconds = time.monotonic() - self._began
        try:
            self._record(outcomes, error, seconds)
        finally:
            if self._span is not None:
                if error is not None:
                    spans.fail(self._span, error)
                self._span.set_attribute(OUTCOME, _one_of(outcomes))
                self._span.end()
            if self._token is not None:
                context_api.detach(self._token)

    def _record(self, outcomes: Sequence[str], error: BaseException | None, seconds: float) -> None:
        meters = self._meters
        if meters is None:
            return
        kind = None if error is None else meters.error_type(class_of(error))
        run = Kind(self._queue, "process", self._task, _one_of(outcomes), kind)
        if run.outcome != MIXED:
            meters.runs.add(run, len(outcomes), seconds)
            return
        meters.runs.add(run, 0, seconds)
        for outcome, count in Counter(outcomes).items():
            meters.runs.add(run._replace(outcome=outcome), count)


def _one_of(outcomes: Sequence[str]) -> str:
    """Return the outcome of a run: that of all its items, or `mixed`."""
    return outcomes[0] if len(outcomes) == 1 or len({*outcomes}) == 1 else MIXED


def _attributes(queue: str, operation: str, task: str | None) -> dict[str, str | int]:
    """Return the attributes of a span, which samplers see."""
    kind = "send" if operation == "add" else operation
    found: dict[str, str | int] = {
        SYSTEM: "leasehold",
        QUEUE: queue,
        OPERATION: operation,
        OPERATION_TYPE: kind,
    }
    if task is not None:
        found[TASK] = task
    return found


def _set_ids(attributes: dict[str, str | int], item_ids: Sequence[str], count: int) -> None:
    """Name the item of a span, or the number of its items."""
    if count == 1:
        attributes[MESSAGE_ID] = item_ids[0]
    else:
        attributes[MESSAGE_COUNT] = count
