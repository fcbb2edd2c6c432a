"""Planning before there is anything to measure: how many workers, and what wait to expect. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasequeue.autoscale.waiting import Demand, fewest_workers, longer_wait, mean_wait, wait_of_share
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Utilisations for which a row is given beside the fewest workers, when no numbers of workers are.
_UTILISATIONS = (0.95, 0.9, 0.8, 0.7, 0.5)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What to expect of one number of workers, when rate and service time stay as they are."""

    #: The number of workers.
    workers: int
    #: The share of the time that a worker is busy; 1 or more: the queue grows.
    utilisation: float
    #: How long items wait on average (s); infinite if the queue grows.
    mean_wait: float
    #: The wait (s) that 99 % of the items do not exceed.
    p99_wait: float
    #: The share of items that wait no longer than the age target.
    within: float
    #: After how long (s) no item of a backlog waits any more, the spin-up included; infinite if it grows.
    clear_in: float
    #: Whether these are the fewest workers that keep the age target in the wished share of cases, and begin
    #: the backlog within it.
    fewest: bool


def estimate(  # noqa: PLR0913 - each is a figure of the plan
    *,
    rate: float,
    service_time: float,
    age_target: float,
    arrival_variation: float = 1.0,
    service_variation: float = 1.0,
    confidence: float = 0.99,
    backlog: int = 0,
    spin_up: float = 30.0,
    workers: Sequence[int] = (),
) -> tuple[Estimate, ...]:
    """Return how long items wait for several numbers of workers.

    Args:
        rate: Items that arrive per second.
        service_time: How long a worker takes for one item (s).
        age_target: How long an item may wait until its run begins (s).
        arrival_variation: The squared coefficient of variation of the times between arrivals; 1: at random.
        service_variation: That of the service times; 0: always the same, 1: exponential.
        confidence: The wished share of items that wait no longer than the age target, from 0 to below 1.
        backlog: Items that wait already when the workers are asked for.
        spin_up: From the request of a worker until it works (s).
        workers: The numbers of workers to look at. By default the fewest that keep the target for what
            arrives, one less, the fewest that begin the backlog within the target, and some more.

    Returns:
        A row for each number of workers, the fewest first.

    Raises:
        InvalidArgument: If a figure is negative, not finite, or out of its range.
    """
    for name, figure in (
        ("rate", rate),
        ("service_time", service_time),
        ("age_target", age_target),
        ("arrival_variation", arrival_variation),
        ("service_variation", service_variation),
        ("backlog", backlog),
        ("spin_up", spin_up),
    ):
        if not (figure >= 0 and math.isfinite(figure)):
            raise InvalidArgument(name, figure, "a number, 0 or more")
    if not 0 <= confidence < 1:
        raise InvalidArgument("confidence", confidence, "a number from 0 to below 1")
    for number in workers:
        if number < 0:
            raise InvalidArgument("workers", number, "whole numbers, 0 or more")
    demand = Demand(
        rate=rate,
        service_time=service_time,
        arrival_variation=arrival_variation,
        service_variation=service_variation,
    )
    fewest = fewest_workers(demand, wait=age_target, share=confidence)
    for_backlog = _to_begin(demand, backlog, age_target, spin_up)
    numbers = set(workers) or set(_numbers(demand, fewest, for_backlog))
    return tuple(
        Estimate(
            workers=number,
            utilisation=_utilisation(number, demand),
            mean_wait=mean_wait(number, demand) if rate > 0 else 0.0,
            p99_wait=wait_of_share(number, demand, 0.99) if rate > 0 else 0.0,
            within=1 - longer_wait(number, demand, age_target) if rate > 0 else 1.0,
            clear_in=_clear_in(number, demand, backlog, spin_up),
            fewest=number == max(fewest, for_backlog),
        )
        for number in sorted(numbers)
    )


def _numbers(demand: Demand, fewest: int, for_backlog: int) -> Iterable[int]:
    yield max(0, fewest - 1)
    yield fewest
    yield fewest + 1
    if for_backlog > fewest:
        yield for_backlog
    for utilisation in _UTILISATIONS:
        number = math.ceil(demand.load / utilisation)
        if number > fewest:
            yield number


def _utilisation(workers: int, demand: Demand) -> float:
    if workers < 1:
        return math.inf if demand.load > 0 else 0.0
    return demand.load / workers


def _to_begin(demand: Demand, backlog: int, within: float, spin_up: float) -> int:
    """Return the fewest workers that begin within a time what waits once they work; 0 without a backlog.

    What arrives while they start counts, what arrives later is behind it. Never more than there are items.
    """
    if backlog <= 0:
        return 0
    items = backlog + demand.rate * spin_up
    if demand.service_time >= within:
        return math.ceil(items)
    return max(1, math.ceil(items * demand.service_time / within))


def _clear_in(workers: int, demand: Demand, backlog: int, spin_up: float) -> float:
    """Return after how long the queue is empty (s), if items arrive while the workers start and later."""
    if backlog <= 0:
        return 0.0
    spare = workers - demand.load
    if spare <= 0:
        return math.inf
    return spin_up + (backlog + demand.rate * spin_up) * demand.service_time / spare
