"""The largest or smallest number of workers that was wanted within a window of time, in bounded memory.

A window is divided into `SLOTS` slots of time. For each slot one number is kept, and only where it decides:
a largest number hides the smaller ones before it. A number counts from its pass until its slot has left
the window: for at least the length of the window, and for at most one slot longer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The slots of one window: what is kept is held for up to an eighth longer than the window.
SLOTS = 8


class Window:
    """What was wanted within the last `length` seconds.

    Args:
        length: The length of the window (s). Up to a millisecond: only the present counts.
        slots: What `slots` gave in an earlier pass: slots of time and numbers.
        now: The present (s).
        choose: `max` or `min`.
    """

    def __init__(
        self,
        length: float,
        slots: Sequence[tuple[float, int]],
        *,
        now: float,
        choose: Callable[[int, int], int],
    ) -> None:
        self._choose = choose
        self._width = length / SLOTS if 1e-3 < length < math.inf else 0.0
        self._slot = int(now // self._width) if self._width else 0
        first = self._slot - SLOTS
        kept = [(int(slot), n) for slot, n in slots if first <= slot <= self._slot] if self._width else []
        self._slots = sorted(kept)

    @property
    def empty(self) -> bool:
        """Whether this is a window of which nothing is known yet."""
        return self._width > 0 and not self._slots

    def add(self, workers: int) -> None:
        """Add what is wanted now."""
        while self._slots and self._choose(self._slots[-1][1], workers) == workers:
            self._slots.pop()
        if not self._slots or self._slots[-1][0] < self._slot:
            self._slots.append((self._slot, workers))

    def value(self) -> int:
        """Return the largest, or smallest, number within the window."""
        return self._slots[0][1]

    @property
    def slots(self) -> list[tuple[int, int]]:
        """What the next pass is to be given."""
        return self._slots if self._width else []
