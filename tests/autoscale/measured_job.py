"""A job whose counters a test moves, and what is measured of them."""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING

from leasequeue.autoscale import Sample, Signals, WorkerSample, measure

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

NOW, EVERY = 1_900_000_000.0, 10.0


class Job:
    """The counters of a queue that a test moves, and what is measured of them."""

    def __init__(self) -> None:
        self.now = NOW
        self.waiting = self.leased = self.leases = 0
        self.more: dict[str, object] = {}
        self.workers: dict[str, WorkerSample] = {}
        self.memory: dict[str, object] = {}

    def measure(self, seconds: float = EVERY) -> Signals:
        """Measure after some time; what is remembered goes through JSON."""
        self.now += seconds
        sample = Sample(
            waiting=self.waiting, leased=self.leased, leases=self.leases, workers=(*self.workers.values(),)
        )
        signals, memory = measure(sample, self.memory, self.now)
        self.memory = json.loads(json.dumps(memory, allow_nan=False))
        assert len(json.dumps(memory)) < 6_000
        return signals

    def work(self, name: str, *seconds: float) -> None:
        """Have a worker do items, which took these times."""
        known = self.workers.get(name, WorkerSample(id=name))
        self.workers[name] = WorkerSample(
            id=name,
            items=known.items + len(seconds),
            seconds=known.seconds + sum(seconds),
            squares=known.squares + sum(one * one for one in seconds),
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
