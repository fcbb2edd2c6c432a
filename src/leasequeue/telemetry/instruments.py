"""Records traces and metrics through the API of OpenTelemetry, by its conventions for messaging."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_tracer,
    set_span_in_context,
)

from leasequeue import telemetry
from leasequeue.errors.describing import (
    TEXT_LENGTH,
    TRACEBACK_LENGTH,
    describe,
    indented,
    plain,
    text_of,
    traceback_of,
)
from leasequeue.telemetry.meters import (
    OPERATION,
    OPERATION_TYPE,
    OUTCOME,
    QUEUE,
    SYSTEM,
    TASK,
    TYPES,
    Kind,
    guarded,
    meters_of,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from leasequeue.telemetry.meters import Meters

#: That of W3C Trace Context: <https://www.w3.org/TR/trace-context/#traceparent-header>.
_FORMAT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def written(context: SpanContext) -> bytes:
    """Return a span's context as a `traceparent`."""
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)


def kept(span: Span) -> bytes | None:
    """Return the `traceparent` of a span, to be kept with items; None: the span is not sampled."""
    context = span.get_span_context()
    return written(context) if context.is_valid and context.trace_flags.sampled else None


def read(text: bytes) -> SpanContext | None:
    """Return the context in a `traceparent`; None if it cannot be read: any client may write one."""
    parts = _FORMAT.fullmatch(text)
    if parts is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in parts.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def links_to(traces: Iterable[bytes | None]) -> list[Link]:
    """Return a link to each span that is known of those that led to items: of an item, one or several."""
    found = (read(one) for text in traces if text is not None for one in text.split(b","))
    return [Link(context) for context in found if context is not None]


def current() -> bytes | None:
    """Return the `traceparent` of the current span; None: there is none."""
    context = trace.get_current_span().get_span_context()
    return written(context) if context.is_valid else None


@contextmanager
def continued(text: bytes | None) -> Iterator[None]:
    """Let the spans that the block begins be children of a span of another process."""
    context = None if text is None else read(text)
    if context is None:
        yield
        return
    token = context_api.attach(trace.set_span_in_context(NonRecordingSpan(context)))
    try:
        yield
    finally:
        context_api.detach(token)


def fail(span: Span, error: BaseException) -> None:
    """Note on a span that it ended with an error, whose texts may raise errors themselves."""
    if not span.is_recording():
        return
    kind = type(error).__name__
    span.set_attribute("error.type", kind)
    span.add_event(
        "exception",
        {
            "exception.type": kind,
            "exception.message": indented(text_of(error)),
            "exception.stacktrace": indented(traceback_of(error), TRACEBACK_LENGTH),
        },
    )
    span.set_status(StatusCode.ERROR, indented(describe(error)))


#: The name of the tracer and of the meter.
SCOPE = "leasequeue"
MESSAGE_ID, MESSAGE_COUNT = "messaging.message.id", "messaging.batch.message_count"
ATTEMPT = "leasequeue.attempt"
#: The attributes that say which stage of a flow run a run works on: none.
NO_STAGE: Mapping[str, str] = MappingProxyType({})


class Instruments:
    """What records the traces and metrics of this process."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        traces: bool,
        metrics: bool,
    ) -> None:
        number = version("leasequeue")
        self.tracer = get_tracer(SCOPE, number, tracer_provider) if traces else None
        self.meters: Meters | None = None
        if metrics:
            self.meters = meters_of(meter_provider or get_meter_provider(), SCOPE, number)

    def leased(self, queue: str, count: int) -> None:
        """Note that items were leased."""
        if self.meters is not None:
            self.meters.leased.of_calls(queue, "lease").count += count

    def added(self, queue: str, count: int, error: BaseException | None = None) -> None:
        """Note that items were added, or that it failed."""
        if self.meters is not None:
            kind = Kind(queue, "add", telemetry.task_added.get(), error_type=self.meters.error_type(error))
            self.meters.sent[kind].count += count

    def called(self, queue: str, operation: str, began: float, error: BaseException | None = None) -> None:
        """Record how long a call has taken that began at a time by `time.monotonic()`."""
        if self.meters is not None:
            now = time.monotonic()
            if error is None:
                series = self.meters.calls.of_calls(queue, operation)
            else:
                series = self.meters.calls[Kind(queue, operation, error_type=self.meters.error_type(error))]
            series.add(1, now - began, now)

    @guarded
    def current_trace(self) -> bytes | None:
        """Return the `traceparent` of the current span, for another process; None: there is none."""
        return None if self.tracer is None else current()

    def producer(self, queue: str, count: int, item_id: bytes) -> Producer | None:
        """Begin the span of a call that adds items; None: there are no traces."""
        return None if self.tracer is None else self._producer(self.tracer, queue, count, item_id)

    @guarded
    def _producer(self, tracer: Tracer, queue: str, count: int, item_id: bytes) -> Producer:
        attributes = _attributes(queue, "add", telemetry.task_added.get())
        _set_ids(attributes, [item_id.decode(errors="surrogateescape")], count)
        return Producer(
            tracer.start_span(f"add {plain(queue)}", kind=SpanKind.PRODUCER, attributes=attributes)
        )

    @guarded
    def begin_run(
        self,
        queue: str,
        task: str,
        item_ids: Sequence[str],
        traces: Sequence[bytes | None],
        attempt: int,
        stage: Mapping[str, str] = NO_STAGE,
    ) -> RunSpan | None:
        """Begin the span of a run, which is the current one until it ends; None: there are no traces."""
        if self.tracer is None:
            return None
        attributes = _attributes(queue, "process", task)
        attributes[ATTEMPT] = attempt
        attributes.update((name, plain(text)) for name, text in stage.items())
        _set_ids(attributes, item_ids, len(item_ids))
        links = links_to(traces)
        span = self.tracer.start_span(
            f"process {plain(queue)}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        return RunSpan(span)


class Producer:
    """The span of a call that adds items.

    Attributes:
        trace: The `traceparent` to keep with the items; None: the span is not sampled.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.trace = kept(span)

    @guarded
    def end(self, error: BaseException | None = None) -> None:
        """End the span."""
        if error is not None:
            fail(self._span, error)
        self._span.end()


class RunSpan:
    """The span of a run. While that continues, it is the current one.

    Attributes:
        trace: The `traceparent` to keep for what follows a stage; None: the span is not sampled.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.trace = kept(span)
        self._token = context_api.attach(set_span_in_context(span))

    @guarded
    def end(self, outcomes: Sequence[str], error: BaseException | None) -> None:
        """End the span."""
        context_api.detach(self._token)
        if error is not None:
            fail(self._span, error)
        self._span.set_attribute(OUTCOME, one_of(outcomes))
        self._span.end()


def _attributes(queue: str, operation: str, task: str | None) -> dict[str, str | int]:
    """Return the attributes of a span, which samplers see."""
    found: dict[str, str | int] = {
        SYSTEM: "leasequeue",
        QUEUE: plain(queue),
        OPERATION: operation,
        OPERATION_TYPE: TYPES[operation],
    }
    if task is not None:
        found[TASK] = plain(task)
    return found


def _set_ids(attributes: dict[str, str | int], item_ids: Sequence[str], count: int) -> None:
    if count == 1:
        attributes[MESSAGE_ID] = plain(item_ids[0], TEXT_LENGTH)
    else:
        attributes[MESSAGE_COUNT] = count
