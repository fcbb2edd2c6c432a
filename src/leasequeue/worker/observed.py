"""Runs, recorded by `leasequeue.telemetry`. While that is off, none of this is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasequeue.worker.outcomes import Complete, Fail

if TYPE_CHECKING:
    from leasequeue.telemetry.instruments import Instruments, RunSpan
    from leasequeue.worker.run import ActiveRun

#: Attributes of the spans of stages.
FLOW, FLOW_RUN, STAGE = "leasequeue.flow", "leasequeue.flow_run", "leasequeue.stage"
CORRELATION = "messaging.message.conversation_id"


def begin(active: Instruments, run: ActiveRun) -> RunSpan | None:
    """Begin the span of a run, in the context in which its handler is called; None: there are no traces."""
    if active.tracer is None:
        return None
    leases = run.leases
    stage = None if run.stages is None else run.stages.only
    span = active.begin_run(
        run.handler.queue.whole.name,
        run.handler.name,
        [lease.id for lease in leases],
        [lease._trace for lease in leases],  # noqa: SLF001 - as bytes, which need not be decoded
        run.attempt,
        ({} if stage is None else {FLOW: stage.flow, FLOW_RUN: stage.run, STAGE: stage.path})
        | ({} if run.correlation is None else {CORRELATION: run.correlation}),
    )
    if run.stages is not None and span is not None:
        run.stages.trace = span.trace
    return span


def end(
    active: Instruments, span: RunSpan | None, run: ActiveRun, error: BaseException | None, ended: float
) -> None:
    """Record the end of a run that has its outcomes.

    `active` is what was active when it began, and `ended` when the handler ended, by `time.monotonic()`. A
    signal that leads to no failure is no error.
    """
    handler, meters = run.handler, active.meters
    outcomes = [outcome.counted_as for outcome in run.outcomes]
    if error is not None and Fail.counted_as not in outcomes:
        error = None
    if meters is not None:
        queue, name = handler.queue.whole.name, handler.name
        handler.completions = meters.run_series(queue, name, Complete.counted_as)
        meters.ran(queue, name, outcomes, error, ended - run.began, ended)
    if span is not None:
        span.end(outcomes, error)
