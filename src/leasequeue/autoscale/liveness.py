"""Whether the copy that leads is alive: when its process dies, the server closes its connections at once.

A copy that takes the lead notes in the state by which connections it can be seen, as workers do when they
register. A standby on the same server that finds all of them gone, again and again, need not wait for the end
of a lease. Where connections cannot be asked for, or a proxy stands in between, the lease decides alone.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.log import Log
from leasequeue.queue.internals import running_engine
from leasequeue.scripting.presence import CannotAsk, present
from leasequeue.worker import peers
from leasequeue.worker.connections import OwnConnections

if TYPE_CHECKING:
    from leasequeue.queue.queue import AsyncWorkQueue

log = Log("leasequeue.autoscale")


class Mark(NamedTuple):
    """How other copies can see whether a copy is alive."""

    #: The session that holds its leases.
    session: str = ""
    #: The ids of its connections; none if they cannot be checked.
    connections: tuple[int, ...] = ()
    #: The run id of the server that has them.
    server: str = ""


class Liveness:
    """Checks by which connections this copy can be seen, and whether another copy is still there.

    Args:
        queue: The autoscaler's queue.
    """

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue
        #: Set when this copy has other connections than before.
        self.changed = asyncio.Event()
        self._own = OwnConnections(self.changed.set)
        #: The copy whose connections are gone, when that was seen last, and for how long in all (s).
        self._suspect: Mark | None = None
        self._looked_at = self._gone_for = 0.0

    @property
    def suspects(self) -> bool:
        """Whether another copy seems to be dead, so that it is to be looked at again soon."""
        return self._suspect is not None

    async def mark(self) -> Mark:
        """Return how this copy can be seen."""
        await self._own.check([self._queue])
        vouched = self._own.vouched(self._queue)
        return Mark(self._queue.session, vouched.connections, vouched.server)

    async def watch_own(self) -> None:
        """Set `changed` when this copy has other connections, until cancelled."""
        await self._own.run([self._queue])

    async def is_dead(self, other: Mark) -> bool:
        """Return whether the connections of a copy have been gone for some time, at several looks.

        A copy that lives and has lost them notes others within milliseconds.

        Raises:
            ServerError: If the server cannot be asked. Then nothing is concluded.
        """
        gone = await self._is_gone(other)
        now = time.monotonic()
        if not gone:
            self._suspect = None
        elif self._suspect != other:
            self._suspect, self._looked_at, self._gone_for = other, now, 0.0
        else:
            self._gone_for += min(now - self._looked_at, peers.LONGEST_LOOK)
            self._looked_at = now
        return gone and self._gone_for >= peers.GONE_SECONDS

    def forget(self) -> None:
        """Suspect no copy."""
        self._suspect = None

    async def _is_gone(self, other: Mark) -> bool:
        if not other.connections:
            return False
        own = await self.mark()
        engine = running_engine(self._queue)
        if engine is None or own.server != other.server or own.session == other.session:
            return False
        # What has cut our connection may have cut those of others, too.
        if peers.standing(engine.session) < peers.STANDING_SECONDS:
            return False
        try:
            seen = await present(engine.session, other.connections, identify=True)
        except CannotAsk as error:
            self._own.switch_off(str(error))
            return False
        return not seen.names and seen.server == other.server
