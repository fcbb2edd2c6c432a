"""Keep a worker registered on its queues, fail workers that are gone, and notice that this one was failed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError, QueueClosed
from leasequeue.log import Log
from leasequeue.queue.internals import registry
from leasequeue.worker.registrations import Member

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.registry import Beat
    from leasequeue.worker.handler import Consumer
    from leasequeue.worker.registrations import Owner, Registration

#: A heartbeat is sent after so long, as a share of the time after which the worker is dead.
BEAT_AFTER = 1 / 3
#: For a permanent worker, after so many seconds.
PERMANENT_BEAT = 5.0
#: How many queues are served by one round of heartbeats, and after how long the next one begins (s).
TOGETHER, ROUND_SECONDS = 25, 0.1
#: How long to wait before another try after an error (s).
RETRY_SECONDS = 1.0
#: How long to wait, at most, before a dead worker is failed, so that not all of its peers do it (s).
JITTER_SECONDS = 0.5
#: The least time for a heartbeat (s).
SHORTEST_TRY = 0.05
#: How long leaving may take (s).
LEAVE_SECONDS = 1.0

#: Why a worker has failed whose heartbeat was refused.
FAILED_BY_ANOTHER = "another client has failed it"

log = Log("leasequeue.worker")


class Membership:
    """Registers a worker on its queues; runs in the background thread.

    Args:
        owner: The worker.
        dead_after: After how many seconds without a heartbeat other workers may fail this one, in seconds;
            None: never.
        gone_after: After how many seconds without a connection they may, and this one stops its runs; None:
            never.
        supervises: Whether to fail other workers.
    """

    def __init__(
        self, owner: Owner, *, dead_after: float | None, gone_after: float | None, supervises: bool
    ) -> None:
        self._owner = owner
        self._gone_after = math.inf if gone_after is None else gone_after
        self._dead_after = math.inf if dead_after is None else dead_after
        self._supervises = supervises
        self._every = PERMANENT_BEAT if dead_after is None else dead_after * BEAT_AFTER
        #: How long heartbeats must have succeeded before this worker fails others (s).
        self._steady_after = PERMANENT_BEAT / BEAT_AFTER if dead_after is None else dead_after
        self._members: dict[Consumer, Member] = {}
        #: The tasks that send heartbeats.
        self._beating: dict[asyncio.Task[None], Member] = {}
        self._woken = asyncio.Event()
        #: The tasks that fail workers of each queue.
        self._failing: dict[Consumer, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        try:
            while True:
                # Also those that are due soon: what is sent together goes with one write.
                soon = time.monotonic() + self._every / 20
                waiting = {*self._beating.values()}
                due = [one for one in self._members.values() if one.due <= soon and one not in waiting]
                for one in due[:TOGETHER]:
                    task = asyncio.create_task(self._beat(one))
                    self._beating[task] = one
                    task.add_done_callback(lambda _: self._woken.set())
                await self._sent()
                if len(due) <= TOGETHER:
                    await self._sleep()
        finally:
            for task in (*self._failing.values(), *self._beating):
                task.cancel()
            self._beating.clear()

    async def _sent(self) -> None:
        """Return when all heartbeats are answered, or soon: a server that is silent must not delay others."""
        if self._beating:
            answered, _ = await asyncio.wait(self._beating, timeout=ROUND_SECONDS)
            for task in answered:
                del self._beating[task]
                task.result()

    def note_peers(self, consumer: Consumer, *, has_peers: bool) -> None:
        """Note whether there are other workers, which may have come or left since the last heartbeat."""
        if member := self._members.get(consumer):
            member.registration.has_peers = has_peers

    def beat_soon(self) -> None:
        """Send the next heartbeats now, since what they say has changed."""
        for member in self._members.values():
            member.due = 0.0
        self._woken.set()

    async def register(self, consumer: Consumer, registration: Registration) -> None:
        """Send the first heartbeat, from the main event loop, before `add`; it names no connections yet."""
        await registration.ended()
        if registration.registered:  # by another worker that shares it
            return
        sent_at = time.monotonic()
        alive_ms = _in_ms(self._dead_after)
        about = {
            **self._owner.about(consumer),
            "connections": [],
            "permanent": alive_ms is None,
            "alive_ms": alive_ms,
        }
        try:
            reply = await registry(consumer.queue).beat(about, alive_ms=alive_ms, first=True)
        except LeasequeueError as error:
            log.debug("%s does not know this worker yet: %s", consumer.queue.name, error)
        else:
            if reply.accepted:
                registration.accepted(sent_at, named=False, has_peers=reply.workers > 1)

    def add(self, consumer: Consumer, registration: Registration) -> None:
        """Register on a queue."""
        loop = asyncio.get_running_loop()

        def beat_soon() -> None:
            with contextlib.suppress(RuntimeError):  # the thread has just ended
                loop.call_soon_threadsafe(self.beat_soon)

        times = self._dead_after, self._gone_after
        member = Member(self._owner, consumer, registration, *times, beat_soon)
        self._members[consumer] = member
        registration.join(member)
        self._woken.set()

    async def leave(self, consumer: Consumer) -> None:
        """End the registration on a queue, unless others share it.

        If the server is away, it ends by itself.
        """
        member = self._members.pop(consumer, None)
        if member is None:
            return
        ending = None
        try:
            async with asyncio.timeout(LEAVE_SECONDS), member.sending:
                ending = member.registration.leave(member)
                if ending is not None:
                    await registry(consumer.queue).leave()
        except (LeasequeueError, TimeoutError) as error:
            log.debug("the registration on %s was not ended: %s", consumer.queue.name, error)
        finally:
            member.registration.forget(member)
            if ending is not None:
                ending.set_result(None)

    async def leave_all(self) -> None:
        """End all registrations that no other worker shares."""
        await asyncio.gather(*map(self.leave, [*self._members]))

    def forget_all(self) -> None:
        """Leave the registrations to end by themselves, after the background thread has ended."""
        while self._members:
            _, member = self._members.popitem()
            member.registration.forget(member)

    async def return_items(self, consumer: Consumer, session: str, leases: Sequence[Lease]) -> None:
        """Return what is left of an earlier session of this worker, however long the server is away.

        Args:
            consumer: The queue.
            session: The session, which was failed, or still has to be.
            leases: Those of its runs. Some may have been taken after it was failed, before this was noticed.
        """
        while True:
            try:
                await consumer.queue.release_many(leases)
                leases = ()
                await asyncio.sleep(RETRY_SECONDS)  # outcomes that wait to be sent go first
                await registry(consumer.queue).fail(session)
            except QueueClosed:
                return
            except LeasequeueError as error:
                log.debug("the items of %s are not returned yet: %s", session, error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _sleep(self) -> None:
        """Wait until the next heartbeat is due, or a late one has been answered."""
        waiting = {*self._beating.values()}
        dues = (one.due for one in self._members.values() if one not in waiting)
        soonest = min(dues, default=time.monotonic() + self._every)
        self._woken.clear()
        try:
            async with asyncio.timeout(max(0.0, soonest - time.monotonic())):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _beat(self, member: Member) -> None:
        """Send a heartbeat, if the registration still holds."""
        registration = member.registration
        await registration.ended()
        if registration.failed:  # another worker has noticed it
            self._drop(member)
            return
        sent_at = time.monotonic()
        # Not exactly, so that workers that were started together do not beat together.
        member.due = sent_at + self._every * random.uniform(0.9, 1.0)  # noqa: S311 - no secret
        dead_after = registration.dead_after
        alive_ms = _in_ms(dead_after)
        about = {**registration.about(member), "permanent": alive_ms is None, "alive_ms": alive_ms}
        if alive_ms is None or registration.gone_after == math.inf:
            about["connections"] = []  # nor is it failed because these are gone
        else:
            about["gone_after"] = registration.gone_after
        left = None
        if alive_ms is not None and registration.registered:
            left = max(SHORTEST_TRY, self._dead_at(member) - sent_at)
        try:
            async with asyncio.timeout(left), member.sending:
                if self._members.get(member.consumer) is not member:
                    return
                reply = await registry(member.consumer.queue).beat(
                    about, alive_ms=alive_ms, first=not registration.registered
                )
        except (LeasequeueError, TimeoutError) as error:
            self._missed(member, error)
            return
        if self._members.get(member.consumer) is member:
            self._answered(member, reply, sent_at, named=bool(about["connections"]))

    def _answered(self, member: Member, reply: Beat, sent_at: float, *, named: bool) -> None:
        """Do what the reply to a heartbeat says."""
        if reply.failed:
            self._failed(member, FAILED_BY_ANOTHER)
            return
        if not reply.accepted:
            self._forgotten(member)
            return
        member.registration.accepted(sent_at, named=named, has_peers=reply.workers > 1)
        if member.steady_since is None:
            member.steady_since = sent_at
        if reply.told != member.told:
            member.told = reply.told
            self._owner.told(reply.told)
        self._supervise(member, reply)

    def _missed(self, member: Member, error: Exception) -> None:
        now = time.monotonic()
        member.steady_since = None
        member.due = now + min(RETRY_SECONDS, self._every)
        registration = member.registration
        if self._members.get(member.consumer) is not member or not registration.registered:
            return
        silent = now - registration.refreshed_at
        log.debug("no heartbeat on %s for %.1f s: %r", member.consumer.queue.name, silent, error)
        dead_at = self._dead_at(member)
        member.due = min(member.due, dead_at)
        if silent >= registration.dead_after:
            self._failed(member, f"it could not refresh its registration for {silent:.1f} s")
        elif now >= dead_at:
            self._failed(
                member,
                f"it has had no connection for {registration.gone_after:.1f} s, so that other workers may "
                "take it for dead",
            )

    def _dead_at(self, member: Member) -> float:
        """Return when other workers may fail this one, if nothing changes, by `time.monotonic()`."""
        registration = member.registration
        dead_at = registration.refreshed_at + registration.dead_after
        cut_since = self._owner.cut_since(member.consumer) if registration.seen else None
        if cut_since is None:
            return dead_at
        return min(dead_at, cut_since + registration.gone_after - SHORTEST_TRY)  # the last try lasts so long

    def _forgotten(self, member: Member) -> None:
        """Register again, as the server was emptied, or restarted without what it had.

        The runs go on: each renews its lease at once, and those end whose items are gone or leased again.
        """
        log.warning(
            "the registration on %s was lost with the server's data: registering again",
            member.consumer.queue.name,
        )
        member.registration.registered = False
        member.due = 0.0
        self._owner.forgotten(member.consumer)

    def _failed(self, member: Member, why: str) -> None:
        self._drop(member)
        member.registration.fail(why)

    def _drop(self, member: Member) -> None:
        """Refresh a registration no more that has failed."""
        if self._members.get(member.consumer) is member:
            del self._members[member.consumer]

    def _supervise(self, member: Member, reply: Beat) -> None:
        """Fail workers that are dead: without a leader and without a lock, since that can be done twice.

        After an outage of the server, all workers seem dead. So none is failed by a worker that has not
        reached the server for as long as it takes to be dead.
        """
        steady = time.monotonic() - (member.steady_since or 0.0)
        if not self._supervises or steady < self._steady_after:
            return
        if reply.expired and member.consumer not in self._failing:
            failing = self._fail(member.consumer, reply.expired)
            self._failing[member.consumer] = asyncio.create_task(failing)

    async def _fail(self, consumer: Consumer, workers: Sequence[str]) -> None:
        queue = consumer.queue
        try:
            await asyncio.sleep(random.uniform(0, JITTER_SECONDS))  # noqa: S311 - no secret
            returned = await registry(queue).fail_many(dict.fromkeys(workers), expired=True)
            for worker, count in returned.items():
                log.warning(
                    "the worker %s of %s is dead: %d items return to the front", worker, queue.name, count
                )
            if returned:
                self.beat_soon()  # which may name others
        except LeasequeueError as error:
            log.debug("%d workers of %s could not be failed: %s", len(workers), queue.name, error)
        finally:
            del self._failing[consumer]


def _in_ms(dead_after: float) -> int | None:
    """Return for how long a heartbeat holds, in ms; None: until the worker leaves."""
    return None if dead_after == math.inf else round(dead_after * 1000)
