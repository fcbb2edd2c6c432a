"""What the parts of a running worker report to each other, and ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio

    from leasequeue.queue.lease import Lease
    from leasequeue.worker.run import ActiveRun


class Coordinator(Protocol):
    """Connects the parts of a running worker, so that none of them needs to know the others.

    `WorkerRuntime` implements it. The methods are called in the worker's event loop, except where it says
    otherwise.
    """

    def run_finished(self, run: ActiveRun) -> None:
        """Acknowledge a run that has its outcomes. The executor calls this.

        Raises:
            TypeError: If one of its outcomes is not an `Outcome`. The item's lease is no longer renewed.
        """

    def wake_fetcher(self) -> None:
        """Fetch if there is room now.

        The executor calls this when a thread that outlived its run ends, the acknowledger after each call.
        """

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Stop the worker if a task ends with an error: without the task, it would only seem to work."""

    def stop_with(self, error: BaseException) -> None:
        """Stop the worker, as one of its parts has failed; `Worker.run` raises the error.

        Callable from any thread.
        """

    def lease_lost(self, run: ActiveRun, lease: Lease) -> None:
        """Discard the outcome of a lost lease. The lease renewer calls this, in the background thread."""

    def runs_released(self) -> None:
        """Fetch less ahead: runs waited too long. The lease renewer calls this, in the background thread."""

    def may_fetch(self) -> bool:
        """Return whether outcomes are acknowledged as fast as runs finish. The fetcher asks this."""

    def is_torn_down(self) -> bool:
        """Return whether all tasks of the event loop are being cancelled. The executor asks this."""
