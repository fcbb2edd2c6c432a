"""How fast items arrive: an average over as long a time as the rate seems to have been the same.

The counts of the last passes are a window, which grows for an hour at most. If the rate of its newer part
differs from that of its older part by more than chance explains, the older part is dropped. So after a jump
the estimate follows with the second pass, as one count alone may be a burst, which comes once; and while
nothing changes it is as exact as an hour of counts allows. Two counts may be a burst, too: so a higher rate
is believed as far as it has lasted, see `arrivals`. This is adaptive windowing (Bifet and Gavaldà,
2007), with a test for counts: their square roots have the same variance at any rate (Anscombe, 1948). How
much is chance follows from the dispersion of the counts, as items may arrive in batches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.autoscale.answer import PASS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasequeue.autoscale.model import Policy

#: How many standard deviations are no chance, of the change of a rate and of its trend. There are some 10,000
#: passes a day, with many places to compare in each.
CHANGE, TREND = 4.0, 3.0
#: How many counts a trend has at least: right after a jump there is none.
TRENDING = 8
#: Which part of a higher rate the count has, at least, in whose middle it begins. And how clear a change is,
#: as a part of what is no chance, that one count next to a clear one confirms.
BEGUN, HALF = 0.05, 0.5
#: How long the window may become (s), and how many counts it has, before older ones are merged.
LONGEST, MOST = 3600.0, 40
#: How many counts the assumption is worth that items arrive at random, of how many at most the dispersion is
#: the mean, and its limits.
PRIOR, REMEMBERED, STEADIEST, WILDEST = 20.0, 40.0, 0.1, 100.0


class Count(NamedTuple):
    """How many items arrived in so many seconds."""

    seconds: float
    items: float


class Arrivals(NamedTuple):
    """How items arrive."""

    #: Per second, now; by how much that changes each second; and the index of dispersion of the counts, which
    #: for independent times between arrivals is their squared coefficient of variation.
    rate: float = 0.0
    trend: float = 0.0
    variation: float = 1.0
    #: The standard error of the rate.
    error: float = 0.0


class ArrivalSpread(NamedTuple):
    """The index of dispersion of counts, and of how many counts it is the mean."""

    counts: float = PRIOR
    dispersion: float = 1.0


class ArrivalCounts(NamedTuple):
    """What is remembered of the arrivals of a job."""

    #: Counts while the rate seems to have been the same, the oldest first; older ones are merged.
    window: Sequence[Count] = ()
    spread: ArrivalSpread = ArrivalSpread()
    #: The last count.
    last: Sequence[Count] = ()
    #: The last count, if it is far above the window: a burst, or the begin of a higher rate.
    aside: Sequence[Count] = ()
    #: The rate that was believed when the window began.
    before: float = 0.0


def follow(known: ArrivalCounts, count: Count, trial: float = 0.0) -> ArrivalCounts:
    """Return what is known after one more count. For `trial`, see `arrivals`."""
    spread = _spread(known, count)
    # What is steadier than at random must not make chance look like a change.
    dispersion = max(1.0, known.spread.dispersion)
    window, aside = [*known.window], [*known.aside]
    up = _change(_sum(window), count, dispersion) if window else 0.0
    if up > 1 or (aside and up > HALF):
        begun = aside or _begun(window, count, dispersion)
        if not begun:
            return known._replace(spread=spread, last=[count], aside=[count])
        window = [*begun, count]
        before = arrivals(known, trial).rate
        return ArrivalCounts(window[_begin(window, dispersion) :], spread, [count], before=before)
    window.append(count)
    while len(window) > 1 and sum(one.seconds for one in window[1:]) > LONGEST:
        del window[0]
    if len(window) > MOST:
        half = MOST // 2
        merged = [_sum(window[at : at + 2]) for at in range(0, half, 2)]
        window = [*merged, *window[half:]]
    begin = _begin(window, dispersion)
    before = arrivals(known, trial).rate if begin else known.before
    return ArrivalCounts(window[begin:], spread, [count], before=before)


def _begun(window: Sequence[Count], count: Count, dispersion: float) -> Sequence[Count]:
    """Return the last count if a higher rate seems to have begun in it; else nothing."""
    before, last = window[:-1], window[-1]
    part = last.items * count.seconds / last.seconds
    if before and part > BEGUN * count.items and _change(_sum(before), last, dispersion) > HALF:
        return [last]
    return []


def arrivals(known: ArrivalCounts, trial: float = 0.0) -> Arrivals:
    """Return how items arrive, given what `follow` returned.

    What has lasted for a time is taken to last as long again. So of a rate that has risen, only the part is
    believed by which the items that have come since would raise the mean of `trial`: of a burst, never
    more than if its items were spread over that time, and of what stays, all after that time. Until then the
    backlog asks for workers.

    Args:
        known: The counts.
        trial: How long a higher rate has to last until all of it is believed (s): the time in which the
            items can still be begun by workers that are asked for later. 0: it is believed at once.
    """
    window, variation = known.window, known.spread.dispersion
    seconds, items = _sum(window)
    if seconds <= 0 or items <= 0:
        return Arrivals(variation=variation)
    rate = items / seconds
    trend, lead = _slope(window, rate, max(1.0, variation))
    # The mean is that of the middle of the window: with a trend, it has changed since.
    now = min(max(rate + trend * lead, rate / 2), rate * 2)
    if now > known.before and seconds < trial:
        part = seconds / trial
        now, trend = known.before + (now - known.before) * part, trend * part
    return Arrivals(now, trend, variation, math.sqrt(now * max(1.0, variation) / seconds))


def look_ahead(policy: Policy, job: str) -> float:
    """Return how long it takes (s) until the units work that the pass after this one asks for."""
    spin_ups = [
        tier.spin_up
        for deployment in policy.deployments.values()
        if job in deployment.jobs
        for tier in deployment.tiers
    ]
    return max(spin_ups, default=0.0) + max(policy.every, PASS)


def trial_of(policy: Policy, job: str) -> float:
    """Return how long a higher rate of a job has to last until all of it is believed (s).

    So long can the items wait that come now, and still be begun by units that the pass after this one asks
    for.
    """
    return min(max(0.0, policy.jobs[job].age_target - look_ahead(policy, job)), LONGEST)


def _sum(counts: Sequence[Count]) -> Count:
    return Count(sum(one.seconds for one in counts), sum(one.items for one in counts))


def _begin(counts: Sequence[Count], dispersion: float) -> int:
    """Return where the part begins in which the rate seems to be the same."""
    begin = 0
    while (cut := _cut(counts[begin:], dispersion)) > 0:
        begin += cut
    return begin


def _cut(counts: Sequence[Count], dispersion: float) -> int:
    """Return where the rate seems to have changed most clearly; 0: it has not."""
    total = _sum(counts)
    seconds, items = 0.0, 0.0
    best, found = 1.0, 0
    for place, one in enumerate(counts[:-1], 1):
        seconds, items = seconds + one.seconds, items + one.items
        after = Count(total.seconds - seconds, total.items - items)
        clear = abs(_change(Count(seconds, items), after, dispersion))
        if clear > best:
            best, found = clear, place
    return found


def _change(before: Count, after: Count, dispersion: float) -> float:
    """Return how clearly the rate has changed: above 1 up, below -1 down; else chance explains it."""
    then, now = (math.sqrt((one.items + 0.375) / one.seconds) for one in (before, after))
    error = math.sqrt(dispersion * (1 / before.seconds + 1 / after.seconds)) / 2
    return (now - then) / error / CHANGE


def _spread(known: ArrivalCounts, count: Count) -> ArrivalSpread:
    """Return the dispersion with one more count: the variance over the mean, measured between neighbours.

    A difference that chance does not explain counts as the largest that it explains (P. J. Huber, 1964).
    """
    counts, dispersion = known.spread
    if not known.last:
        return known.spread
    before = known.last[0]
    both, window = _sum((before, count)), _sum(known.window)
    rate = max(one.items / one.seconds for one in (both, window) if one.seconds > 0)
    chance = rate * (1 / count.seconds + 1 / before.seconds)
    if chance <= 0:
        return known.spread
    difference = (count.items / count.seconds - before.items / before.seconds) ** 2 / chance
    # Counts of 0 and 1 say little.
    part = min(1.0, (before.items + count.items) / 2)
    mean = (counts * dispersion + part * min(difference, CHANGE**2 * max(1.0, dispersion))) / (counts + part)
    return ArrivalSpread(
        round(min(counts + part, REMEMBERED), 3), round(min(max(mean, STEADIEST), WILDEST), 4)
    )


def _slope(window: Sequence[Count], rate: float, dispersion: float) -> tuple[float, float]:
    """Return by how much the rate changes each second, and for how long (s) since the middle of the window.

    0: no more than chance explains.
    """
    if len(window) < TRENDING:
        return 0.0, 0.0
    ago, middles = 0.0, list[float]()
    for one in reversed(window):
        middles.append(-ago - one.seconds / 2)
        ago += one.seconds
    middles.reverse()
    weight = sum(one.seconds for one in window)
    middle = sum(at * one.seconds for at, one in zip(middles, window, strict=True)) / weight
    spread = sum((at - middle) ** 2 * one.seconds for at, one in zip(middles, window, strict=True))
    if spread <= 0:
        return 0.0, 0.0
    slope = sum((at - middle) * one.items for at, one in zip(middles, window, strict=True)) / spread
    error = math.sqrt(rate * dispersion / spread)
    return (slope, -middle) if abs(slope) > TREND * error else (0.0, 0.0)
