"""Runs that wait for a process, beside the slots: async runs of the same queue must not wait behind them.

The name of a task is known only when its item has been leased, so a worker may lease many that need a
process. It keeps those that will start soon, and one for each process, with an equal share for each queue,
in which its groups take turns; each second it offers them to other workers. The others it delays: it
releases them with a delay, so that it gets to the items behind them, and other workers to these. Those of a
group are leased again one after the other, all of them twice as fast as the processes take them. The longer
all processes are busy, the longer the delay, so that workers with long runs do not move a large queue around
and around.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING

from leasequeue.errors import LeasequeueError
from leasequeue.worker.run import by_consumer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasequeue.worker.handler import Consumer
    from leasequeue.worker.lease_renewer import LeaseRenewer
    from leasequeue.worker.processes import Processes
    from leasequeue.worker.run import ActiveRun

#: No more runs than this are kept.
MAX_KEPT = 1000
#: A run that is not kept has this time to start (s): the processes may just be quick.
STALE_SECONDS = 0.07
#: How often those that are kept are offered to others (s).
OFFER_SECONDS = 1.0
#: How often to look for runs that have waited too long (s).
TICK = 0.05
#: The shortest and the longest delay of the first run that is delayed, and the longest of any (s).
SHORTEST_DELAY, LONGEST_DELAY, LONGEST_OF_ANY = 0.1, 10.0, 30.0
#: The delay as a share of the time for which all processes have been busy; a run can be late by no more.
SHARE_OF_BUSY = 0.25
#: The longest time between two that are leased again (s).
LONGEST_GAP = 0.002


class Parking:
    """Moves the runs that wait for a process out of the way. Only the event loop may use it."""

    def __init__(self, processes: Processes, renewer: LeaseRenewer) -> None:
        #: When the last run of each group that was delayed can be leased again, by `time.monotonic()`.
        self._aside_until: dict[tuple[Consumer, bytes | None], float] = {}
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
        """Whether nothing is delayed, or about to be."""
        return not self._releasing and max(self._aside_until.values(), default=0.0) <= time.monotonic()

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
        offered = dict.fromkeys(run for run in parked if now - run.arrived >= OFFER_SECONDS)
        rest = in_turn(run for run in parked if run not in offered)
        others = beyond_share(rest, min(MAX_KEPT, self.processes.keeps))
        late = dict.fromkeys(run for run in others if now - run.arrived >= STALE_SECONDS)
        parked.clear()
        parked.extend(run for run in rest if run not in late)
        self._release([*offered], [0.0] * len(offered))
        self._release([*late], self._delays(now, [*late]))
        self._timer = None
        if parked:
            self._look_later()

    def _delays(self, now: float, runs: Sequence[ActiveRun]) -> list[float]:
        """Return for how long to delay runs, which are leased again after others of their group."""
        busy = min(LONGEST_DELAY, max(SHORTEST_DELAY, (now - self.processes.taken_at) * SHARE_OF_BUSY))
        aside = self._aside_until = {key: until for key, until in self._aside_until.items() if until > now}
        gap = min(LONGEST_GAP, self.processes.pause / 2) * len({*aside, *map(_group_of, runs)})
        delays = []
        for run in runs:
            last = max(aside.get(_group_of(run), 0.0), now + busy)
            until = aside[_group_of(run)] = min(last + gap, now + LONGEST_OF_ANY)
            delays.append(until - now)
        return delays

    def _release(self, runs: Sequence[ActiveRun], delays: Sequence[float]) -> None:
        for run in runs:
            self._renewer.remove(run)  # before: else a renewal may find that its lease is lost
        delay_of = dict(zip(runs, delays, strict=True))
        for consumer, some in by_consumer(runs).items():
            releasing = self._send(consumer, some, [delay_of[run] for run in some])
            task = self._loop.create_task(releasing, name="leasequeue parking")
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
                now, aside = time.monotonic(), self._aside_until
                for run, delay in zip(runs, delays, strict=True):
                    aside[_group_of(run)] = max(aside.get(_group_of(run), 0.0), now + delay)
            else:
                await queue.release_many([lease for run in runs for lease in run.leases])
        except LeasequeueError:  # the server is away: they wait again, and their leases are renewed
            self._renewer.held.update(dict.fromkeys(runs))
            self._renewer.parked.extendleft(reversed(runs))
            self._look_later()


def beyond_share(runs: Iterable[ActiveRun], keeps: int) -> list[ActiveRun]:
    """Return the runs, in order, that are not among the first of their queue, which share what is kept.

    What some queues do not need, the others share. One of each queue is kept in any case, so that none waits
    behind all runs of another. The groups of a queue take turns, as they do when items are leased.
    """
    found: list[ActiveRun] = []
    queues = sorted(by_consumer(runs).values(), key=len)
    for at, some in enumerate(queues):
        share = max(1, keeps // (len(queues) - at))
        keeps -= min(share, len(some))
        found += in_turn(some)[share:]
    return sorted(found, key=lambda run: run.arrived)


def in_turn(runs: Iterable[ActiveRun]) -> list[ActiveRun]:
    """Return the first run of each group, then the second of each, and so on; those of no group are one."""
    turns: Counter[tuple[Consumer, bytes | None]] = Counter()
    ranked = []
    for run in runs:
        ranked.append((turns[_group_of(run)], run))
        turns[_group_of(run)] += 1
    return [run for _, run in sorted(ranked, key=lambda one: one[0])]


def _group_of(run: ActiveRun) -> tuple[Consumer, bytes | None]:
    return run.handler.consumer, run.lease._group  # noqa: SLF001 - users know it by name
