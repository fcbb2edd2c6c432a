"""Runs, recorded by `leasehold.telemetry`. While that is off, none of this is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leasehold.worker.outcomes import Fail

if TYPE_CHECKING:
    from leasehold.telemetry.instruments import Instruments, ObservedRun
    from leasehold.worker.run import ActiveRun


def begin(active: Instruments, run: ActiveRun) -> ObservedRun | None:
    """Begin to observe a run, in the context in which its handler is called."""
    leases = run.leases
    return active.run(
        run.handler.queue.name,
        run.handler.name,
        [lease.id for lease in leases],
        [lease._trace for lease in leases],  # noqa: SLF001 - as bytes, which need not be decoded
        run.attempt,
    )


def end(observed: ObservedRun, run: ActiveRun, error: BaseException | None) -> None:
    """Record the end of a run that has its outcomes.

    Args:
        observed: What `begin` returned.
        run: The run.
        error: What the handler raised. A signal that leads to no failure is none.
    """
    failed = any(isinstance(outcome, Fail) for outcome in run.outcomes)
    observed.end([outcome.counted_as for outcome in run.outcomes], error if failed else None)
