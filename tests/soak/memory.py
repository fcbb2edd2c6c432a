"""Check whether memory grows, from noisy samples."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Above this number only every n-th sample is used, because all pairs are compared.
_MAX_SAMPLES = 300
#: The share of the samples at the start to ignore.
_WARM_UP = 0.3
#: The growth that is allowed over the other samples: a share of their median, or so many bytes.
_SHARE, _MINIMUM = 0.1, 2 << 20


class Growth(NamedTuple):
    """The trend of a series of memory samples."""

    #: Bytes per minute: the median slope of all pairs of samples, which outliers do not change.
    per_minute: float
    #: Bytes: the median of the samples, and the growth over the whole time at that slope.
    level: float
    #: By how many bytes it has grown.
    added: float
    #: Whether the growth is above what is allowed.
    grows: bool


def check_memory(samples: Sequence[tuple[float, float]]) -> Growth:
    """Check whether memory grows, by the Theil-Sen slope, which single samples do not change.

    Args:
        samples: Pairs of a time in seconds and a number of bytes, in the order of time.

    Raises:
        ValueError: If fewer than three samples are left after the warm-up.
    """
    kept = samples[int(len(samples) * _WARM_UP) :]
    step = -(-len(kept) // _MAX_SAMPLES) or 1
    thin = kept[::step]
    slopes = [
        (size - size_before) / (at - before)
        for (before, size_before), (at, size) in combinations(thin, 2)
        if at > before
    ]
    if len(thin) < 3 or not slopes:
        raise ValueError(f"{len(samples)} samples: at least three are needed after the warm-up")
    slope = median(slopes)
    level = median(size for _, size in thin)
    added = slope * (thin[-1][0] - thin[0][0])
    return Growth(slope * 60, level, added, added > max(_SHARE * level, _MINIMUM))
