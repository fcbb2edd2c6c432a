"""Reading the autoscaler's memory: JSON that an older version may have written, or that is damaged.

What is not of the expected kind is left out. Nothing here raises.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def mapping_in(memory: object, *names: str) -> Mapping[str, object]:
    """Return the mapping that is found by these names one below the other, empty if there is none."""
    for name in names:
        memory = memory.get(name) if isinstance(memory, Mapping) else None
    return memory if isinstance(memory, Mapping) else {}


def number_in(value: object) -> float | None:
    """Return a finite number, or None if the value is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def count_in(value: object) -> int | None:
    """Return a whole number, 0 or more; None if the value is not one."""
    number = number_in(value)
    return int(number) if number is not None and number >= 0 else None


def pairs_in(value: object) -> list[tuple[float, int]]:
    """Return the pairs of a number and a count that a list has, in their order."""
    pairs = []
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, list | tuple) and len(entry) == 2:
            first, second = number_in(entry[0]), count_in(entry[1])
            if first is not None and second is not None:
                pairs.append((first, second))
    return pairs
