"""What workers say of their runs: each for itself, from time to time."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tests.autoscale.measured_job import worker_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leasequeue.queue import WorkerStats
    from tests.autoscale.simulation.pool import Run


class Reports:
    """The registrations of the workers of one queue.

    Args:
        every: The time between two heartbeats of a worker (s). Each has its own beat.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        #: Runs that have ended since the last look.
        self.ended: list[Run] = []
        self._said: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def _last_beat(self, worker: int, now: float) -> float:
        return now - (now - worker * 0.618 * self._every) % self._every

    def look(self, workers: Iterable[int], running: Sequence[Run], now: float) -> tuple[WorkerStats, ...]:
        """Return what the workers of now have said at their last heartbeats."""
        unsaid = []
        for run in self.ended:
            if run.end > self._last_beat(run.worker, now):
                unsaid.append(run)
                continue
            said = self._said[run.worker]
            said[0] += 1
            said[1] += run.seconds
            said[2] += run.seconds**2
        self.ended = unsaid
        began = defaultdict(list)
        for run in running:
            began[run.worker].append(run.start)
        return tuple(
            worker_of(
                id=f"worker {one}",
                items=int(self._said[one][0]),
                seconds=self._said[one][1],
                squares=self._said[one][2],
                running=tuple(beat - start for start in began[one] if start <= beat),
            )
            for one in workers
            for beat in (self._last_beat(one, now),)
        )
