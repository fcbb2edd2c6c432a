"""Does memory grow? Asked of samples that jump about."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from leasehold.durations import check_int
from leasehold.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

#: More samples than these are thinned out: each pair of them is looked at.
_MOST_SAMPLES = 300


class Growth(NamedTuple):
    """How memory went."""

    #: Bytes a minute: the median slope of all pairs of samples, which outliers do not move.
    per_minute: float
    #: Bytes: the median of the samples, and how much was added over the whole time at that slope.
    level: float
    added: float
    #: Whether more was added than was allowed.
    grows: bool


def check_memory(
    samples: Sequence[tuple[float, float]],
    *,
    warm_up: float = 0.3,
    share: float = 0.1,
    minimum: int = 2 << 20,
) -> Growth:
    """Look whether memory grows, with a slope that single samples cannot bend (Theil and Sen).

    Args:
        samples: Pairs of a time in seconds and a number of bytes, in order.
        warm_up: The share of them at the beginning that is left out, as everything grows then.
        share: What may be added over the time of the others, as a share of their median …
        minimum: … or, if that is more, so many bytes.

    Raises:
        InvalidArgument: If fewer than three samples are left, or one of the arguments is not as said.
    """
    if not 0 <= warm_up < 1:
        raise InvalidArgument("warm_up", warm_up, "a share, 0 or more and less than 1")
    if not share >= 0:
        raise InvalidArgument("share", share, "0 or more")
    check_int("minimum", minimum, minimum=0, maximum=2**53)
    kept = samples[int(len(samples) * warm_up) :]
    step = -(-len(kept) // _MOST_SAMPLES) or 1
    thin = kept[::step]
    slopes = [(b - a) / (then - now) for (now, a), (then, b) in combinations(thin, 2) if then > now]
    if len(thin) < 3 or not slopes:
        raise InvalidArgument("samples", len(samples), "three samples at least, after the warm-up")
    slope = median(slopes)
    level = median(size for _, size in thin)
    added = slope * (thin[-1][0] - thin[0][0])
    return Growth(slope * 60, level, added, added > max(share * level, minimum))
