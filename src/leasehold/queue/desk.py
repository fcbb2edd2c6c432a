"""The lease desk: hands out items to the coroutines of one process that ask for some.

Asks are gathered as in the batcher: one script call serves many. Who finds nothing and wants to wait is
parked. While somebody is parked, one connection listens for new items (`BLMOVE` into the inbox of this
session, so that one item wakes one process), and a timer asks again when the next lease expires or the
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


class Ask:
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


class LeaseDesk:
    """Leases items for the callers of one queue object.

    Args:
        runner: Sends the scripts.
        script: `lease_many`, bound to the queue.
        listener: Waits for new items.
        fixed: The arguments of the script that do not change, and the time where a test hands it in.
        give_back: Called with items that nobody is there to take; they go back to the front.
    """

    def __init__(
        self,
        runner: Runner,
        script: BoundScript,
        listener: Listener,
        *,
        fixed: Callable[[], dict[str, bytes | int]],
        give_back: Callable[[list[Leased]], None],
    ) -> None:
        self._runner = runner
        self._script = script
        self._listener = listener
        self._fixed = fixed
        self._give_back = give_back
        self._loop = asyncio.get_running_loop()
        self._fresh: deque[Ask] = deque()
        self._parked: deque[Ask] = deque()
        self._under_way = False
        self._scheduled = False
        self._again = False
        self._alarm: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._sessions = 1
        self._idle = asyncio.Event()

    async def ask(self, count: int, lease_ms: int, *, blocks: bool, timeout: float) -> list[Leased]:
        """Lease up to `count` items.

        Args:
            count: The most items, 1 to 1,000.
            lease_ms: How long each is leased, in ms.
            blocks: Whether to wait when there is none.
            timeout: How long to wait, in seconds; 0 is for ever.

        Returns:
            At least one item, or an empty list if there was none (in time).
        """
        ask = Ask(count, lease_ms, blocks=blocks, future=self._loop.create_future())
        if blocks and timeout:
            ask.timer = self._loop.call_later(timeout, self._expire, ask)
        self._fresh.append(ask)
        self.wake()
        try:
            return await ask.future
        except asyncio.CancelledError:
            self._abandon(ask)
            raise
        finally:
            if ask.timer is not None:
                ask.timer.cancel()

    def wake(self) -> None:
        """Ask the server at the end of this turn of the loop, or as soon as the trip under way is back."""
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
            for ask in (*self._parked, *self._fresh):
                _fail(ask, error)
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

    def _abandon(self, ask: Ask) -> None:
        """The caller was cancelled: forget it, and hand on what it was just given."""
        if ask.future.done() and not ask.future.cancelled() and ask.future.exception() is None:
            self._give_back(ask.future.result())
        if ask in self._parked:
            self._parked.remove(ask)
            self._rest()

    def _expire(self, ask: Ask) -> None:
        """The caller's time is up. One that is with a trip under way gets what that brings."""
        ask.timer = None
        ask.blocks = False
        if ask in self._parked:
            self._parked.remove(ask)
            self._rest()
            if not ask.future.done():
                ask.future.set_result([])

    def _arrived(self, trouble: LeaseholdError | None) -> None:
        """An id is in the inbox, or the wait is over: ask, or give it back if nobody wants it."""
        if trouble is not None:
            while self._parked:
                _fail(self._parked.popleft(), trouble)
        if self._parked or self._fresh or self._under_way:
            self.wake()
        else:
            self._listener.stop_soon()

    def _rest(self) -> None:
        """If nobody waits any more, stop listening soon: the next ask often comes at once."""
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
        """Make one trip for everybody who asks: those that wait longest first."""
        self._scheduled = False
        self._idle.set()
        asks, wants = self._next_asks()
        if not asks:
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
                self._refuse(asks, error or AssertionError("no reply and no error"))
            else:
                self._hand_out(asks, reply, asked_at, behind)
            self._idle.set()

        self._runner.submit(self._script.script, tail, answered)

    def _next_asks(self) -> tuple[list[Ask], list[bytes]]:
        asks: list[Ask] = []
        runs: list[list[int]] = []
        total = 0
        for source in (self._parked, self._fresh):
            while source and total < MAX_ITEMS:
                ask = source[0]
                if not ask.future.done():
                    if total + ask.count > MAX_ITEMS and asks:
                        break
                    total += ask.count
                    asks.append(ask)
                    if runs and runs[-1][1] == ask.lease_ms:
                        runs[-1][0] += ask.count
                    else:
                        runs.append([ask.count, ask.lease_ms])
                source.popleft()
        return asks, [b"%d" % number for run in runs for number in run]

    def _refuse(self, asks: list[Ask], error: BaseException) -> None:
        for ask in asks:
            _fail(ask, error)
        self._carry_on(wait_ms=-1, sessions=1)

    def _hand_out(self, asks: list[Ask], reply: list[Any], asked_at: float, behind: int) -> None:
        now_ms, wait_ms, sessions = reply[:3]
        at, end = 3, len(reply)
        spare: list[Leased] = []
        parked: list[Ask] = []
        for ask in asks:
            stop = min(end, at + 4 * ask.count)
            got = [
                (reply[i], reply[i + 1], reply[i + 2], reply[i + 3], ask.lease_ms, asked_at, now_ms)
                for i in range(at, stop, 4)
            ]
            at = stop
            if ask.future.done():
                spare += got
            elif got or not (ask.blocks or wait_ms == 0):
                ask.future.set_result(got)
            else:
                parked.append(ask)
        # Those who waited longest stay first.
        self._parked.extendleft(reversed(parked))
        if parked and wait_ms != 0:
            self._turn_away(behind)
        if spare:
            self._give_back(self._hand_on(spare))
        self._carry_on(wait_ms, sessions)

    def _turn_away(self, behind: int) -> None:
        """Those who asked before the trip, and for whom it had no place, know by it that nothing is left.

        Without this, as long as those who wait fill each trip, nobody else would ever be answered.
        """
        for _ in range(min(behind, len(self._fresh))):
            ask = self._fresh.popleft()
            if ask.future.done():
                continue
            if ask.blocks:
                self._parked.append(ask)
            else:
                ask.future.set_result([])

    def _hand_on(self, spare: list[Leased]) -> list[Leased]:
        """Give items of cancelled callers to waiting ones that want the same lease time."""
        left: list[Leased] = []
        for leased in spare:
            heir = next(
                (ask for ask in self._parked if ask.lease_ms == leased[4] and not ask.future.done()), None
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
        """Something falls due in so many seconds: ask then, unless something else is due before."""
        if not self._parked and not self._under_way:
            return
        # The first to ask brings everything back that is due, which wakes as many others as are needed:
        # so many waiters spread out a little, a lone one asks on the dot.
        spread = min(0.02, 0.0002 * (self._sessions - 1))
        due = self._loop.time() + seconds + 0.001 + random.uniform(0, spread)  # noqa: S311 - no secret
        if self._alarm is None or due < self._alarm.when():
            self._silence()
            self._alarm = self._loop.call_at(due, self.wake)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def _fail(ask: Ask, error: BaseException) -> None:
    """Each caller gets an error of its own, so that tracebacks do not pile up in one."""
    if not ask.future.done():
        ask.future.set_exception(copy.copy(error))
