"""Records traces and metrics through the API of OpenTelemetry, by its conventions for messaging."""

from __future__ import annotations

import time
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from opentelemetry import context as context_api
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import SpanKind, get_tracer, set_span_in_context

from leasequeue import telemetry
from leasequeue.telemetry import spans
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
    from collections.abc import Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from leasequeue.telemetry.meters import Meters

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
        return None if self.tracer is None else spans.current()

    def producer(self, queue: str, count: int, item_id: bytes) -> Producer | None:
        """Begin the span of a call that adds items; None: there are no traces."""
        return None if self.tracer is None else self._producer(self.tracer, queue, count, item_id)

    @guarded
    def _producer(self, tracer: Tracer, queue: str, count: int, item_id: bytes) -> Producer:
        attributes = _attributes(queue, "add", telemetry.task_added.get())
        _set_ids(attributes, [item_id.decode(errors="replace")], count)
        return Producer(tracer.start_span(f"add {queue}", kind=SpanKind.PRODUCER, attributes=attributes))

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
        attributes.update(stage)
        _set_ids(attributes, item_ids, len(item_ids))
        links = spans.links_to(traces)
        span = self.tracer.start_span(
            f"process {queue}", kind=SpanKind.CONSUMER, attributes=attributes, links=links
        )
        return RunSpan(span)


class Producer:
    """The span of a call that adds items.

    Attributes:
        trace: The `traceparent` to keep with the items; None: the span is not sampled.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.trace = spans.kept(span)

    @guarded
    def end(self, error: BaseException | None = None) -> None:
        """End the span."""
        if error is not None:
            spans.fail(self._span, error)
        self._span.end()


class RunSpan:
    """The span of a run. While that continues, it is the current one.

    Attributes:
        trace: The `traceparent` to keep for what follows a stage; None: the span is not sampled.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.trace = spans.kept(span)
        self._token = context_api.attach(set_span_in_context(span))

    @guarded
    def end(self, outcomes: Sequence[str], error: BaseException | None) -> None:
        """End the span."""
        context_api.detach(self._token)
        if error is not None:
            spans.fail(self._span, error)
        self._span.set_attribute(OUTCOME, one_of(outcomes))
        self._span.end()


def _attributes(queue: str, operation: str, task: str | None) -> dict[str, str | int]:
    """Return the attributes of a span, which samplers see."""
    found: dict[str, str | int] = {
        SYSTEM: "leasequeue",
        QUEUE: queue,
        OPERATION: operation,
        OPERATION_TYPE: TYPES[operation],
    }
    if task is not None:
        found[TASK] = task
    return found


def _set_ids(attributes: dict[str, str | int], item_ids: Sequence[str], count: int) -> None:
    if count == 1:
        attributes[MESSAGE_ID] = item_ids[0]
    else:
        attributes[MESSAGE_COUNT] = count
