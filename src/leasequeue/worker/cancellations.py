"""Cancels the runs of items that were cancelled.

A message says only which items may have been cancelled: whether they were is read from the ledger.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import TRIP_ROWS
from leasequeue.queue.queue import engine_of, engines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.run import ActiveRun

#: How long a message is kept that came before its run (s), and at most how many of them.
KEEP_SECONDS = 10.0
MAX_EARLY = 10_000

#: The queue, the token and the id of a lease.
_Known = tuple[str, int, bytes]

log = Log("leasequeue.worker")


class Cancellations:
    """Cancels runs when the server pushes that their items were cancelled.

    The items of a run that is not cancelled this way, because the message was lost, are cancelled when their
    leases are renewed; after the connection was lost, that is done at once.
    """

    def __init__(self, renewer: LeaseRenewer) -> None:
        self._renewer = renewer
        self._loop = asyncio.get_running_loop()
        #: The tokens and ids of leases whose items may have been cancelled, by queue.
        self._claims: dict[AsyncWorkQueue, list[tuple[int, bytes]]] = {}
        #: Reads which of them were.
        self._looking: asyncio.Task[None] | None = None
        #: The same of runs that have not begun to be held when the message came, and when it came.
        self._early: dict[_Known, float] = {}

    def start(self, queue: AsyncWorkQueue) -> Callable[[], None]:
        """Receive messages about a queue; return what ends it."""
        received = partial(self._received, queue)
        return engine_of(queue).pushes.follow("cancel", received, missed=self._renewer.renew_soon)

    def check(self, run: ActiveRun) -> None:
        """Cancel a run that is about to start, if a message about it has come before it."""
        if self._early:
            self._cancel(run, self._early)

    def _received(self, queue: AsyncWorkQueue, message: bytes) -> None:
        token, _, item_id = message.partition(b" ")
        claims = self._claims.setdefault(queue, [])
        if not (token.isdigit() and len(token) < 20):
            engines_of(queue).unverified.add()
            return
        if len(claims) == MAX_EARLY:
            self._renewer.renew_soon()
            return
        claims.append((int(token), item_id))
        if self._looking is None:
            # Many may be cancelled at once: look for all of them together.
            self._looking = self._loop.create_task(self._look(), name="leasequeue cancellations")

    async def _look(self) -> None:
        """Read which items have no lease of the token any more, and cancel their runs."""
        try:
            while self._claims:
                queue, claims = self._claims.popitem()
                for at in range(0, len(claims), TRIP_ROWS):
                    part = claims[at : at + TRIP_ROWS]
                    ended = await _ended(queue, part)
                    engines_of(queue).unverified.add(len(part) - len(ended))
                    self._find_runs({(queue.name, *one) for one in ended})
        except (LeasequeueError, ValueError):  # such as an entry that another client has written
            self._renewer.renew_soon()
        finally:
            self._looking = None

    def _find_runs(self, pushed: set[_Known]) -> None:
        for run in list(self._renewer.held):
            pushed -= self._cancel(run, pushed)
        now = time.monotonic()
        self._early.update(dict.fromkeys(pushed, now))
        for known, came in list(self._early.items()):
            if came > now - KEEP_SECONDS and len(self._early) <= MAX_EARLY:
                break
            del self._early[known]

    def _cancel(self, run: ActiveRun, cancelled: Container[_Known]) -> set[_Known]:
        """Cancel those leases of a run that are among the cancelled ones; return which were."""
        found: set[_Known] = set()
        for lease in run.leases:
            known = (lease.queue_name, lease.token, lease.id.encode(errors="surrogateescape"))
            if known in cancelled:
                found.add(known)
                cancel(run, lease)
        return found


async def _ended(queue: AsyncWorkQueue, claims: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return those of the tokens and ids that are of no lease any more.

    First the last token is read: one that will be given later is of no lease yet.
    """
    engine = engine_of(queue)
    ids = [item_id for _, item_id in claims]
    reads = [(b"GET", engine.keys["fence"]), (b"HMGET", engine.keys["ledger"], *ids)]
    fence, entries = await engine.read_many_at(reads)
    ended = []
    for (token, item_id), entry in zip(claims, entries, strict=True):
        first, last = map(int, (entry or b"1 0").split()[:2])
        if token <= int(fence or 0) and not first <= token <= last:
            ended.append((token, item_id))
    return ended


def cancel(run: ActiveRun, lease: Lease) -> None:
    """Cancel a lease of a run, because its item was cancelled."""
    log.info("item %s (%s) was cancelled", lease.id, run.handler.queue.whole.name, extra=run.log_fields)
    run.cancel(lease)
