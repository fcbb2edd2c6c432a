"""A job whose counters a test moves, and what is measured of them."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING

from leasequeue.autoscale import Signals, measure
from leasequeue.queue import QueueStats, WorkerStats
from leasequeue.queue.limits import Limit, Pause
from leasequeue.queue.stats import WaitTimes
from leasequeue.views import Counts

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

NOW, EVERY = 1_900_000_000.0, 10.0


def stats_of(  # noqa: PLR0913 - each is a counter
    *,
    waiting: int,
    leased: int,
    leases: int,
    scheduled: int = 0,
    due: int = 0,
    due_soon: int = 0,
    expired: int = 0,
    orphaned: int = 0,
    oldest_age: float = 0.0,
    limit: int | None = None,
    workers: tuple[WorkerStats, ...] = (),
) -> QueueStats:
    """Return the statistics of a queue with these counters; with the limit 0 it is paused."""
    return QueueStats(
        queue="job",
        counts=Counts(waiting, leased, scheduled, 0),
        oldest_age=oldest_age,
        oldest_age_error=0.0,
        wait=WaitTimes(),
        leases=leases,
        paused=Pause(since=NOW, until=None, reason="") if limit == 0 else None,
        limit=Limit(concurrency=limit),
        workers=workers,
        due=due,
        due_soon=due_soon,
        expired=expired,
        orphaned=orphaned,
    )


def worker_of(
    *,
    id: str,  # noqa: A002 - the name of the attribute
    items: int = 0,
    seconds: float = 0.0,
    squares: float = 0.0,
    concurrency: int = 1,
    running: tuple[float, ...] = (),
    alive: bool = True,
) -> WorkerStats:
    """Return what a worker says that has done items in some seconds, and runs for these."""
    return WorkerStats(
        id=id,
        name=id,
        dead=not alive,
        concurrency=concurrency,
        running=len(running),
        runs=items,
        failures=0,
        run_seconds=seconds,
        items=items,
        item_seconds=seconds,
        item_squares=squares,
        ages=running,
    )


class Job:
    """The counters of a queue that a test moves, and what is measured of them."""

    def __init__(self) -> None:
        self.now = NOW
        self.waiting = self.leased = self.leases = 0
        self.more: dict[str, object] = {}
        self.workers: dict[str, WorkerStats] = {}
        self.memory: dict[str, object] = {}

    def measure(self, seconds: float = EVERY) -> Signals:
        """Measure after some time; what is remembered goes through JSON."""
        self.now += seconds
        stats = stats_of(
            waiting=self.waiting, leased=self.leased, leases=self.leases, workers=(*self.workers.values(),)
        )
        signals, memory = measure(stats, self.memory, self.now)
        self.memory = json.loads(json.dumps(memory, allow_nan=False))
        assert len(json.dumps(memory)) < 6_000
        return signals

    def work(self, name: str, *seconds: float) -> None:
        """Have a worker do items, which took these times."""
        known = self.workers.get(name, worker_of(id=name))
        self.workers[name] = worker_of(
            id=name,
            items=known.items + len(seconds),
            seconds=known.item_seconds + sum(seconds),
            squares=known.item_squares + sum(one * one for one in seconds),
        )

    def steady(
        self, rate: Callable[[float], float], passes: int, draw: Random | None = None
    ) -> list[Signals]:
        """Have items arrive and begin at once, at random if `draw` is given."""
        found: list[Signals] = []
        for _ in range(passes):
            mean = rate(self.now - NOW) * EVERY
            self.leases += round(mean) if draw is None else arrived(draw, mean)
            found.append(self.measure())
        return found


def arrived(draw: Random, mean: float) -> int:
    """Return how many arrive, if so many do on average."""
    if mean > 60:
        return max(0, round(draw.gauss(mean, math.sqrt(mean))))
    return sum(
        1
        for _ in itertools.takewhile(
            lambda at: at < mean, itertools.accumulate(iter(lambda: draw.expovariate(1), None))
        )
    )
