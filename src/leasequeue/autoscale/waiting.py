"""How long items wait for a free worker: formulas of queueing theory, for any number of workers.

The model is one queue, first in, first out, and workers that are all alike: M/M/c (A. K. Erlang, 1917) with
the correction of Allen and Cunneen (1990) for arrivals and service times that are not exponential. Its
exponential tail is exact for M/M/c, and that of heavy traffic otherwise (J. F. C. Kingman, 1962; J.
Köllerström, 1974). docs/pages/reference/autoscale.md says where that is a heuristic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Up to this load the formulas are summed exactly: below 2 ms. Above it, their limit for many workers is
#: used (S. Halfin and W. Whitt, 1981), which is wrong by less than one worker in 1,000 at this load.
EXACT_LOAD = 1_000_000.0
#: From how many standard deviations below the load the sum starts. What is left out is less than exp(-32).
_DEVIATIONS = 8.0
#: Below this, a chance is 0.
_NEVER = 1e-300


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What workers have to do: items that arrive, and how long each takes."""

    #: Items per second, 0 or more.
    rate: float
    #: Seconds of one worker for an item, the mean; 0 or more.
    service_time: float
    #: The squared coefficient of variation of the times between arrivals; 1: at random.
    arrival_variation: float = 1.0
    #: The squared coefficient of variation of the service times; 0: always the same, 1: exponential.
    service_variation: float = 1.0

    @property
    def load(self) -> float:
        """The workers that are busy on average, if there are enough (erlangs)."""
        return self.rate * self.service_time

    @property
    def spread(self) -> float:
        """The factor of Allen and Cunneen for waits; 1 for M/M/c."""
        return (self.arrival_variation + self.service_variation) / 2


def erlang_b(workers: int, load: float) -> float:
    """Return the share of items that find all workers busy and leave (Erlang B)."""
    if load <= 0:
        return 0.0 if workers > 0 else 1.0
    if load > EXACT_LOAD:
        return _limit_of_erlang_b(workers, load)
    first, blocked = _start(min(float(workers), load), load)
    for number in range(first + 1, workers + 1):
        blocked = load * blocked / (number + load * blocked)
        if blocked < _NEVER:
            return 0.0
    return blocked


def erlang_c(workers: int, load: float) -> float:
    """Return the share of items that have to wait at all (Erlang C); 1 if the workers are too few."""
    if load <= 0:
        return 0.0 if workers > 0 else 1.0
    if workers <= load:
        return 1.0
    return _c_from_b(erlang_b(workers, load), workers, load)


def longer_wait(workers: int, demand: Demand, wait: float) -> float:
    """Return the share of items that wait longer than `wait` (s); 1 if the workers are too few."""
    load = demand.load
    if workers <= load:
        return 1.0 if load > 0 or workers < 1 else 0.0
    return erlang_c(workers, load) * _tail(workers - load, demand, wait)


def mean_wait(workers: int, demand: Demand) -> float:
    """Return how long items wait on average (s); infinite if the workers are too few."""
    spare = workers - demand.load
    if spare <= 0:
        return math.inf
    return erlang_c(workers, demand.load) * demand.spread * demand.service_time / spare


def wait_of_share(workers: int, demand: Demand, share: float) -> float:
    """Return the wait (s) that `share` (0 to 1) of the items do not exceed; infinite with too few workers."""
    spare = workers - demand.load
    if spare <= 0:
        return math.inf
    waiting = erlang_c(workers, demand.load)
    if waiting <= 1 - share:
        return 0.0
    if share >= 1:
        return math.inf
    return demand.spread * demand.service_time / spare * math.log(waiting / (1 - share))


def fewest_workers(demand: Demand, *, wait: float, share: float) -> int:
    """Return the fewest workers with which `share` of the items wait no longer than `wait`.

    Args:
        demand: What there is to do.
        wait: The longest wait (s), 0 or more.
        share: The share of items, from 0 to below 1.

    Returns:
        More workers than the load, so that the queue does not grow; 0 if there is no load.
    """
    load = demand.load
    if load <= 0:
        return 1 if demand.rate > 0 else 0
    allowed = 1 - share
    if load > EXACT_LOAD:
        return _fewest_of_very_many(demand, wait, allowed)
    number, blocked = _start(load, load)
    while True:
        number += 1
        blocked = load * blocked / (number + load * blocked)
        if number <= load:
            continue
        if _c_from_b(blocked, number, load) * _tail(number - load, demand, wait) <= allowed:
            return number


def _start(below: float, load: float) -> tuple[int, float]:
    """Return a number of workers so far below `below` that a rough Erlang B will do there, and that Erlang B.

    Each further step of the recursion multiplies the relative error by 1 - B.
    """
    first = max(0, math.floor(below - _DEVIATIONS * math.sqrt(load)))
    return first, 1 - first / load if first else 1.0


def _c_from_b(blocked: float, workers: int, load: float) -> float:
    idle = workers - load + load * blocked
    return min(1.0, blocked * workers / idle) if idle > 0 else 1.0  # not above 0: too much for a float


def _tail(spare: float, demand: Demand, wait: float) -> float:
    """Return the share of the items that wait, of which the wait is longer than `wait`."""
    scale = demand.spread * demand.service_time
    if wait <= 0:
        return 1.0
    return math.exp(-wait * spare / scale) if scale > 0 else 0.0


def _limit_of_erlang_b(workers: float, load: float) -> float:
    """Return Erlang B for very many workers, from the normal distribution."""
    beta = (workers - load) / math.sqrt(load)
    below = math.erfc(-beta / math.sqrt(2)) / 2
    if below < _NEVER:
        return 1 - workers / load
    return math.exp(-beta * beta / 2) / math.sqrt(2 * math.pi) / below / math.sqrt(load)


def _fewest_of_very_many(demand: Demand, wait: float, allowed: float) -> int:
    """Return the fewest workers by halving the interval: more than `low`, at most `high`."""
    load = demand.load
    low, high = math.floor(load), math.ceil(load + 40 * math.sqrt(load))
    while high - low > 1:
        middle = (low + high) // 2
        if middle > load:
            blocked = _limit_of_erlang_b(middle, load)
            if _c_from_b(blocked, middle, load) * _tail(middle - load, demand, wait) <= allowed:
                high = middle
                continue
        low = middle
    return high
