"""Spans of producers and of runs, and the `traceparent` by which a run is linked to its producer.

The format is that of W3C Trace Context: <https://www.w3.org/TR/trace-context/#traceparent-header>.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import context as context_api
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, StatusCode, TraceFlags

from leasequeue.describing import describe, text_of, traceback_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from opentelemetry.trace import Span

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
            "exception.message": text_of(error),
            "exception.stacktrace": traceback_of(error),
        },
    )
    span.set_status(StatusCode.ERROR, describe(error))
