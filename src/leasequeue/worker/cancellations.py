"""Cancels the runs of items that were cancelled."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from leasequeue.log import Log
from leasequeue.queue.queue import engine_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.run import ActiveRun

#: How long a message is kept that came before its run (s), and at most how many of them.
KEEP_SECONDS = 10.0
MAX_EARLY = 10_000

log = Log("leasequeue.worker")


class Cancellations:
    """Cancels runs when the server pushes that their items were cancelled.

    The items of a run that is not cancelled this way, because the message was lost, are cancelled when their
    leases are renewed; after the connection was lost, that is done at once.
    """

    def __init__(self, renewer: LeaseRenewer) -> None:
        self._renewer = renewer
        self._loop = asyncio.get_running_loop()
        #: The queues and tokens of leases whose items were cancelled and whose runs are to be found.
        self._pushed: set[tuple[str, int]] = set()
        #: The same of runs that have not begun to be held when the message came, and when it came.
        self._early: dict[tuple[str, int], float] = {}

    def start(self, queue: AsyncWorkQueue) -> Callable[[], None]:
        """Receive messages about a queue; return what ends it."""
        received = partial(self._received, queue.name)
        return engine_of(queue).pushes.follow("cancel", received, missed=self._renewer.renew_soon)

    def check(self, run: ActiveRun) -> None:
        """Cancel a run that is about to start, if a message about it has come before it."""
        if self._early:
            self._cancel(run, self._early)

    def _received(self, queue: str, message: bytes) -> None:
        token = message.partition(b" ")[0]
        if token.isdigit() and len(token) < 20:  # any client may publish to a channel
            if not self._pushed:
                # Many may be cancelled at once: look for all of them together.
                self._loop.call_soon(self._find_runs)
            self._pushed.add((queue, int(token)))

    def _find_runs(self) -> None:
        pushed, self._pushed = self._pushed, set()
        for run in list(self._renewer.held):
            pushed -= self._cancel(run, pushed)
        now = time.monotonic()
        self._early.update(dict.fromkeys(pushed, now))
        for known, came in list(self._early.items()):
            if came > now - KEEP_SECONDS and len(self._early) <= MAX_EARLY:
                break
            del self._early[known]

    def _cancel(self, run: ActiveRun, cancelled: Container[tuple[str, int]]) -> set[tuple[str, int]]:
        """Cancel those leases of a run that are among the cancelled ones; return which were."""
        found: set[tuple[str, int]] = set()
        for lease in run.leases:
            known = (lease.queue_name, lease.token)
            if known in cancelled:
                found.add(known)
                cancel(run, lease)
        return found


def cancel(run: ActiveRun, lease: Lease) -> None:
    """Cancel a lease of a run, because its item was cancelled."""
    log.info("item %s (%s) was cancelled", lease.id, lease.queue_name, extra=run.log_fields)
    run.cancel(lease)
