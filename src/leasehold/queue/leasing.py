"""Hand out items to the coroutines of one process that lease some.

Requests are gathered as in the batcher: one script call serves many. A request that finds nothing and may
wait is parked. While one is parked, one connection listens for new items (`BLMOVE` into the inbox of this
session, so that one item wakes one process), and a timer leases again when the next lease expires or the
next delayed item falls due.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasehold.errors import LeaseholdError
    from leasehold.queue.listener import Listener
    from leasehold.scripting.runner import BoundScript, Runner

#: The most that one trip leases: items (unless one caller wants more), and bytes of data.
MAX_ITEMS = 250
MAX_BYTES = 8 << 20
#: How long the listener is kept when nobody waits any more (s).
LINGER_SECONDS = 0.25

#: id, data, token, attempt, lease time in ms, `time.monotonic()` before it was asked for, and the
#: server's time in ms: what a `Lease` is made of.
Leased = tuple[bytes, bytes, int, int, int, float, int]


class LeaseRequest:
    """One caller's wish: up to `count` items for `lease_ms`, now or later."""

    __slots__ = ("blocks", "count", "future", "lease_ms", "timer")

    def __init__(
        self, count: int, lease_ms: int, *, blocks: bool, future: asyncio.Future[list[Leased]]
    ) -> None:
        self.count = count
        self.lease_ms = lease_ms
        self.blocks = blocks
        self.future = future
        self.timer: asyncio.TimerHandle | None = None


class LeaseDispatcher:
    """Leases items for the callers of one queue object.

    Args:
        runner: Sends the scripts.
        script: `lease_many`, bound to the queue.
        listener: Waits for new items.
        fixed: The arguments of the script that do not change, and the time where a test hands it in.
        release: Called with items that nobody is there to take; they go back to the front.
    """

    def __init__(
        self,
        runner: Runner,
        script: BoundScript,
        listener: Listener,
        *,
        fixed: Callable[[], dict[str, bytes | int]],
        release: Callable[[list[Leased]], None],
    ) -> None:
        self._runner = runner
        self._script = script
        self._listener = listener
        self._fixed = fixed
        self._release_spare = release
        self._loop = asyncio.get_running_loop()
        self._fresh: deque[LeaseRequest] = deque()
        self._parked: deque[LeaseRequest] = deque()
        self._under_way = False
        self._scheduled = False
        self._again = False
        self._alarm: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._sessions = 1
        self._idle = asyncio.Event()

    async def lease(self, count: int, lease_ms: int, *, blocks: bool, timeout: float) -> list[Leased]:
        """Lease up to `count` items.

        Args:
            count: The most items, 1 to 1,000.
            lease_ms: How long each is leased, in ms.
            blocks: Whether to wait when there is none.
            timeout: How long to wait, in seconds; 0 is for ever.

        Returns:
            At least one item, or an empty list if there was none (in time).
        """
        request = LeaseRequest(count, lease_ms, blocks=blocks, future=self._loop.create_future())
        if blocks and timeout:
            request.timer = self._loop.call_later(timeout, self._expire, request)
        self._fresh.append(request)
        self.wake()
        try:
            return await request.future
        except asyncio.CancelledError:
            self._abandon(request)
            raise
        finally:
            if request.timer is not None:
                request.timer.cancel()

    def wake(self) -> None:
        """Call the script at the end of this turn of the loop, or when the trip in flight is back."""
        if self._under_way:
            self._again = True
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send)

    async def rest(self) -> None:
        """If nobody waits, stop listening now; what was on its way to this process is back then.

        A trip under way is waited for: what it brings for callers that have gone is given back by then.
        """
        while (self._scheduled or self._under_way) and not self._parked:
            self._idle.clear()
            await self._idle.wait()
        if not (self._parked or self._fresh):
            await self._listener.stop()

    async def close(self, error: LeaseholdError) -> None:
        """Let nobody wait any longer, and return what is on its way to this process."""
        while True:
            for request in (*self._parked, *self._fresh):
                _fail(request, error)
            self._parked.clear()
            if not self._under_way and not self._scheduled:
                break
            # Those with a trip under way get what it brings, or are parked by it and told then.
            self._idle.clear()
            await self._idle.wait()
        for timer in (self._alarm, self._linger):
            if timer is not None:
                timer.cancel()
        await self._listener.stop()

    def _abandon(self, request: LeaseRequest) -> None:
        """The caller was cancelled: forget it, and hand on what it was just given."""
        if request.future.done() and not request.future.cancelled() and request.future.exception() is None:
            self._release_spare(request.future.result())
        if request in self._parked:
            self._parked.remove(request)
            self._rest()

    def _expire(self, request: LeaseRequest) -> None:
        """The caller's time is up. One that is with a trip under way gets what that brings."""
        request.timer = None
        request.blocks = False
        if request in self._parked:
            self._parked.remove(request)
            self._rest()
            if not request.future.done():
                request.future.set_result([])

    def _arrived(self, trouble: LeaseholdError | None) -> None:
        """An id is in the inbox, or the wait is over: lease it, or give it back if nobody wants it."""
        if trouble is not None:
            while self._parked:
                _fail(self._parked.popleft(), trouble)
        if self._parked or self._fresh or self._under_way:
            self.wake()
        else:
            self._listener.stop_soon()

    def _rest(self) -> None:
        """If nobody waits any more, stop listening soon: the next request often comes at once."""
        if self._parked:
            return
        self._silence()
        if self._listener.attached and self._linger is None:
            self._linger = self._loop.call_later(LINGER_SECONDS, self._stop_listening)

    def _stop_listening(self) -> None:
        self._linger = None
        if not self._parked:
            self._listener.stop_soon()

    def _send(self) -> None:
        """Make one trip for all requests: those that wait longest first."""
        self._scheduled = False
        self._idle.set()
        requests, wants = self._next_requests()
        if not requests:
            # All have been cancelled since. An id that came for them goes back at once.
            self._listener.stop_soon()
            return
        behind = len(self._fresh)
        self._under_way = True
        self._again = False
        self._silence()  # the answer says what is due next, and what comes up meanwhile is announced
        asked_at = time.monotonic()
        tail = self._script.tail(self._fixed() | {"max_bytes": MAX_BYTES}, wants)

        def answered(reply: list[Any] | None, error: BaseException | None) -> None:
            self._under_way = False
            if reply is None:
                self._refuse(requests, error or AssertionError("no reply and no error"))
            else:
                self._hand_out(requests, reply, asked_at, behind)
            self._idle.set()

        self._runner.submit(self._script.script, tail, answered)

    def _next_requests(self) -> tuple[list[LeaseRequest], list[bytes]]:
        requests: list[LeaseRequest] = []
        runs: list[list[int]] = []
        total = 0
        for source in (self._parked, self._fresh):
            while source and total < MAX_ITEMS:
                request = source[0]
                if not request.future.done():
                    if total + request.count > MAX_ITEMS and requests:
                        break
                    total += request.count
                    requests.append(request)
                    if runs and runs[-1][1] == request.lease_ms:
                        runs[-1][0] += request.count
                    else:
                        runs.append([request.count, request.lease_ms])
                source.popleft()
        return requests, [b"%d" % number for run in runs for number in run]

    def _refuse(self, requests: list[LeaseRequest], error: BaseException) -> None:
        for request in requests:
            _fail(request, error)
        self._carry_on(wait_ms=-1, sessions=1)

    def _hand_out(self, requests: list[LeaseRequest], reply: list[Any], asked_at: float, behind: int) -> None:
        now_ms, wait_ms, sessions = reply[:3]
        at, end = 3, len(reply)
        spare: list[Leased] = []
        parked: list[LeaseRequest] = []
        for request in requests:
            stop = min(end, at + 4 * request.count)
            got = [
                (reply[i], reply[i + 1], reply[i + 2], reply[i + 3], request.lease_ms, asked_at, now_ms)
                for i in range(at, stop, 4)
            ]
            at = stop
            if request.future.done():
                spare += got
            elif got or not (request.blocks or wait_ms == 0):
                request.future.set_result(got)
            else:
                parked.append(request)
        # Those who waited longest stay first.
        self._parked.extendleft(reversed(parked))
        if parked and wait_ms != 0:
            self._turn_away(behind)
        if spare:
            self._release_spare(self._hand_on(spare))
        self._carry_on(wait_ms, sessions)

    def _turn_away(self, behind: int) -> None:
        """Those who asked before the trip, and for whom it had no place, know by it that nothing is left.

        Without this, as long as those who wait fill each trip, nobody else would ever be answered.
        """
        for _ in range(min(behind, len(self._fresh))):
            request = self._fresh.popleft()
            if request.future.done():
                continue
            if request.blocks:
                self._parked.append(request)
            else:
                request.future.set_result([])

    def _hand_on(self, spare: list[Leased]) -> list[Leased]:
        """Give items of cancelled callers to waiting ones that want the same lease time."""
        left: list[Leased] = []
        for leased in spare:
            heir = next(
                (
                    request
                    for request in self._parked
                    if request.lease_ms == leased[4] and not request.future.done()
                ),
                None,
            )
            if heir is None:
                left.append(leased)
            else:
                self._parked.remove(heir)
                heir.future.set_result([leased])
        return left

    def _carry_on(self, wait_ms: int, sessions: int) -> None:
        """After a trip: make the next one, or listen and set the alarm."""
        if self._fresh or self._again or (self._parked and wait_ms == 0):
            self._again = False
            self.wake()
            return
        if not self._parked:
            self._rest()
            return
        self._listener.start(self._arrived)
        self._sessions = sessions
        if wait_ms > 0:
            self.expect(wait_ms / 1000)

    def expect(self, seconds: float) -> None:
        """Something falls due in so many seconds: lease then, unless something else is due before."""
        if not self._parked and not self._under_way:
            return
        # The first to lease brings everything back that is due, which wakes as many others as are needed:
        # so many waiters spread out a little, a lone one leases on the dot.
        spread = min(0.02, 0.0002 * (self._sessions - 1))
        due = self._loop.time() + seconds + 0.001 + random.uniform(0, spread)  # noqa: S311 - no secret
        if self._alarm is None or due < self._alarm.when():
            self._silence()
            self._alarm = self._loop.call_at(due, self.wake)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _fail(request: LeaseRequest, error: BaseException) -> None:
    """Each caller gets an error of its own, so that tracebacks do not pile up in one."""
    if not request.future.done():
        request.future.set_exception(copy.copy(error))
