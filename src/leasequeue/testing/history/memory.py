"""Check whether memory grows, from noisy samples."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from leasequeue.durations import check_int
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Above this number only every n-th sample is used, because all pairs are compared.
_MAX_SAMPLES = 300


class Growth(NamedTuple):
    """The trend of a series of memory samples."""

    #: Bytes per minute: the median slope of all pairs of samples, which outliers do not change.
    per_minute: float
    #: Bytes: the median of the samples, and the growth over the whole time at that slope.
    level: float
    added: float
    #: Whether the growth is above what is allowed.
    grows: bool


def check_memory(
    samples: Sequence[tuple[float, float]],
    *,
    warm_up: float = 0.3,
    share: float = 0.1,
    minimum: int = 2 << 20,
) -> Growth:
    """Check whether memory grows, by the Theil-Sen slope, which single samples do not change.

    Args:
        samples: Pairs of a time in seconds and a number of bytes, in the order of time.
        warm_up: The share of the samples at the start to ignore.
        share: The growth that is allowed over the other samples, as a share of their median.
        minimum: The growth that is always allowed, in bytes.

    Raises:
        InvalidArgument: If fewer than three samples are left, or an argument is out of range.
    """
    if not 0 <= warm_up < 1:
        raise InvalidArgument("warm_up", warm_up, "a share, 0 or more and less than 1")
    if not share >= 0:
        raise InvalidArgument("share", share, "0 or more")
    check_int("minimum", minimum, minimum=0, maximum=2**53)
    kept = samples[int(len(samples) * warm_up) :]
    step = -(-len(kept) // _MAX_SAMPLES) or 1
    thin = kept[::step]
    slopes = [
        (size - size_before) / (at - before)
        for (before, size_before), (at, size) in combinations(thin, 2)
        if at > before
    ]
    if len(thin) < 3 or not slopes:
        raise InvalidArgument("samples", len(samples), "at least three samples after the warm-up")
    slope = median(slopes)
    level = median(size for _, size in thin)
    added = slope * (thin[-1][0] - thin[0][0])
    return Growth(slope * 60, level, added, added > max(share * level, minimum))
