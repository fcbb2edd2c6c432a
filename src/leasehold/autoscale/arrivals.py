"""How fast items arrive: an average over as long a time as the rate seems to have been the same.

The counts of the last passes are a window, which grows for an hour at most. If the rate of its newer part
differs from that of its older part by more than chance explains, the older part is dropped: after a jump the
estimate follows with the next pass, and while nothing changes it is as exact as an hour of counts allows.
This is adaptive windowing (Bifet and Gavaldà, 2007), with a test for counts: their square roots have the same
variance at any rate (Anscombe, 1948). How much is chance follows from the dispersion of the counts, as items
may arrive in batches.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How many standard deviations are no chance: the rate has gone up, down; and there is a trend.
UP, DOWN, TREND = 3.0, 3.5, 3.0
#: How long the window may become (s); how many counts it has, before older ones are merged; and of
#: how many single passes the dispersion is measured.
LONGEST, MOST, RECENT = 3600.0, 40, 20
#: How many counts the assumption is worth that items arrive at random, the limits of the dispersion, and by
#: what it is larger than the mean without the two largest, at random.
PRIOR, STEADIEST, WILDEST, TRIMMED = 5, 0.1, 100.0, 1.54


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


def follow(window: Sequence[Count], recent: Sequence[Count], count: Count) -> tuple[list[Count], list[Count]]:
    """Return the window and the single counts of the last passes after one more count.

    A count that is much higher than those before may be a batch, whose items wait now, or a new rate: it is
    put aside until the next count shows which. Of a batch, nothing is to be expected of the future.
    """
    passes = [*recent, count][-RECENT:]
    high = _is_high(window, recent, count)
    aside = recent[-1] if recent and window and window[-1] != recent[-1] else None
    if high and aside is None:
        return [*window], passes
    counts = [aside, count] if high and aside is not None else [*window, count]
    while len(counts) > 1 and sum(one.seconds for one in counts[1:]) > LONGEST:
        del counts[0]
    if len(counts) > MOST:
        half = MOST // 2
        merged = [_sum(counts[at : at + 2]) for at in range(0, half, 2)]
        counts = [*merged, *counts[half:]]
    # What is steadier than at random must not make chance look like a change.
    return counts[_begin(counts, max(1.0, _dispersion(passes))) :], passes


def _is_high(window: Sequence[Count], recent: Sequence[Count], count: Count) -> bool:
    """Whether a count is higher than those before by more than chance explains."""
    if not window:
        return False
    seconds, items = _sum(window)
    error = math.sqrt(max(1.0, _dispersion(recent)) * (1 / seconds + 1 / count.seconds)) / 2
    before = math.sqrt((items + 0.375) / seconds)
    return math.sqrt((count.items + 0.375) / count.seconds) - before > UP * error


def arrivals(window: Sequence[Count], recent: Sequence[Count]) -> Arrivals:
    """Return how items arrive, given what `follow` returned."""
    seconds, items = _sum(window)
    variation = _dispersion(recent)
    if seconds <= 0 or items <= 0:
        return Arrivals(variation=variation)
    rate = items / seconds
    trend, lead = _slope(window, rate, max(1.0, variation))
    # The mean is that of the middle of the window: with a trend, the rate has gone on since.
    now = min(max(rate + trend * lead, rate / 2), rate * 2)
    return Arrivals(now, trend, variation)


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
        before = math.sqrt((items + 0.375) / seconds)
        after = math.sqrt((total.items - items + 0.375) / (total.seconds - seconds))
        error = math.sqrt(dispersion * (1 / seconds + 1 / (total.seconds - seconds))) / 2
        clear = (after - before) / error
        clear = clear / UP if clear > 0 else -clear / DOWN
        if clear > best:
            best, found = clear, place
    return found


def _dispersion(recent: Sequence[Count]) -> float:
    """Return the variance of the counts over their mean, measured between neighbours.

    A change of the rate is a difference between two neighbours: the two largest do not count.
    """
    total = _sum(recent)
    if total.items <= 0 or len(recent) < 2:
        return 1.0
    rate = total.items / total.seconds
    found: list[float] = []
    for before, after in itertools.pairwise(recent):
        difference = after.items / after.seconds - before.items / before.seconds
        chance = rate * (1 / after.seconds + 1 / before.seconds)
        found.append(difference * difference / chance)
    kept = sorted(found)[:-2] if len(found) > 4 else []
    # Counts of 0 and 1 say little.
    part = min(1.0, total.items / len(recent))
    measured = (PRIOR + part * sum(kept) * TRIMMED) / (PRIOR + part * len(kept))
    return min(max(measured, STEADIEST), WILDEST)


def _slope(window: Sequence[Count], rate: float, dispersion: float) -> tuple[float, float]:
    """Return by how much the rate changes each second, and for how long (s) since the middle of the window.

    0: no more than chance explains.
    """
    if len(window) < 4:
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
