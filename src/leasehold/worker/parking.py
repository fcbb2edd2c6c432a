"""Runs that wait for a process, beside the slots: async runs of the same queue must not wait behind them.

The name of a task is known only when its item has been leased, so a worker may lease many that need a
process. It keeps those that will start soon, and one for each process; each second it offers them to other
workers. The others it puts aside: it releases them with a delay, so that it gets to the items behind them,
and other workers to these. They come back one after the other, twice as fast as the processes take them. The
longer all processes are busy, the longer the delay, so that workers with long runs do not move a large queue
around and around.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from leasehold.errors import LeaseholdError
from leasehold.worker.run import by_consumer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.worker.handler import Consumer
    from leasehold.worker.lease_renewer import LeaseRenewer
    from leasehold.worker.processes import Processes
    from leasehold.worker.run import ActiveRun

#: No more runs than this are kept.
MAX_KEPT = 1000
#: A run that is not kept has this time to start (s): the processes may just be quick.
STALE_SECONDS = 0.07
#: How often those that are kept are offered to others (s).
OFFER_SECONDS = 1.0
#: How often to look for runs that have waited too long (s).
TICK = 0.05
#: The shortest and the longest delay of the first run that is put aside, and the longest of any (s).
SHORTEST_DELAY, LONGEST_DELAY, LONGEST_OF_ANY = 0.1, 10.0, 30.0
#: The longest time between two that come back (s).
LONGEST_GAP = 0.002


class Parking:
    """Moves the runs that wait for a process out of the way. Only the event loop may use it.

    Attributes:
        processes: The processes that they wait for.
    """

    def __init__(self, processes: Processes, renewer: LeaseRenewer) -> None:
        #: When the last run that was put aside can be leased again, by `time.monotonic()`.
        self._aside_until = 0.0
        self.processes = processes
        self._renewer = renewer
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._releasing: set[asyncio.Task[None]] = set()

    def park(self, run: ActiveRun) -> None:
        """Let a run wait for a process."""
        self._renewer.parked.append(run)
        self.processes.want(len(self._renewer.parked))
        self._look_later()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is put aside, or about to be."""
        return not self._releasing and self._aside_until <= time.monotonic()

    async def released(self) -> None:
        """Wait until nothing is being released; what could not be waits for a process again."""
        await asyncio.gather(*self._releasing)

    def stop(self) -> None:
        """Release nothing more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look_later(self) -> None:
        if self._timer is None and not self._is_stopped:
            self._timer = self._loop.call_later(TICK, self._look)

    def _look(self) -> None:
        parked, now = self._renewer.parked, time.monotonic()
        offered: list[ActiveRun] = []
        while parked and now - parked[0].arrived >= OFFER_SECONDS:
            offered.append(parked.popleft())
        self._release(offered, [0.0] * len(offered))
        keeps = min(MAX_KEPT, self.processes.keeps)
        others = [parked.pop() for _ in range(len(parked) - keeps)]
        others.reverse()
        late = [run for run in others if now - run.arrived >= STALE_SECONDS]
        parked.extend(others[len(late) :])  # they are in the order in which they arrived
        self._release(late, self._delays(now, len(late)))
        self._timer = None
        if parked:
            self._look_later()

    def _delays(self, now: float, count: int) -> list[float]:
        """Return for how long to put aside so many runs, which come back after those that already are."""
        busy = min(LONGEST_DELAY, max(SHORTEST_DELAY, now - self.processes.taken_at))
        gap = min(LONGEST_GAP, self.processes.pause / 2)
        delays = []
        for _ in range(count):
            self._aside_until = min(max(self._aside_until, now + busy) + gap, now + LONGEST_OF_ANY)
            delays.append(self._aside_until - now)
        return delays

    def _release(self, runs: Sequence[ActiveRun], delays: Sequence[float]) -> None:
        for run in runs:
            self._renewer.remove(run)  # before: else a renewal may find that its lease is lost
        delay_of = dict(zip(runs, delays, strict=True))
        for consumer, some in by_consumer(runs).items():
            releasing = self._send(consumer, some, [delay_of[run] for run in some])
            task = self._loop.create_task(releasing, name="leasehold parking")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _send(self, consumer: Consumer, runs: Sequence[ActiveRun], delays: Sequence[float]) -> None:
        queue = consumer.queue
        try:
            if any(delays):
                rows = zip(runs, delays, strict=True)
                calls = [queue.release(lease, delay=delay) for run, delay in rows for lease in run.leases]
                await asyncio.gather(*calls)
                # The delays began when the server got them.
                self._aside_until = max(self._aside_until, time.monotonic() + max(delays))
            else:
                await queue.release_many([lease for run in runs for lease in run.leases])
        except LeaseholdError:  # the server is away: they wait again, and their leases are renewed
            self._renewer.held.update(dict.fromkeys(runs))
            self._renewer.parked.extendleft(reversed(runs))
            self._look_later()
