"""A row of units that failed: how long to wait before the next start, and why they failed."""

from __future__ import annotations

#: The first and the longest pause between a failure and the next start (s).
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
#: After so many failures before the unit was at work, only one is started, and its output is captured.
TRIAL_AFTER = 2


class Failures:
    """Counts the failures of a row. All times are those of one clock, in seconds.

    Attributes:
        count: How many there were, those that were noticed together counted once; 0: the row has ended.
        problem: What was wrong with the last one.
        at_start: Whether that was before it was at work.
        since: When the first one was noticed.
        pause: How long after the last one the next unit may be started.
        next_start: When that is.
    """

    def __init__(self) -> None:
        self.count = 0
        self.problem = ""
        self.at_start = False
        self.since = self.pause = self.next_start = 0.0

    def add(self, problem: str, now: float, *, at_start: bool) -> None:
        """Add a failure; the pause before the next start doubles.

        There is none after a unit that was at work, if it is the first of the row: it may have been killed.
        """
        if not self.count:
            self.since = now
        self.count += 1
        self.problem, self.at_start = problem, at_start
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(self.count - 1, 10))
        self.pause = pause if at_start or self.count > 1 else 0.0
        self.next_start = now + self.pause

    def end(self) -> None:
        """End the row: a unit lives."""
        self.count, self.problem, self.at_start = 0, "", False

    def pauses(self, now: float) -> bool:
        """Return whether no unit may be started now."""
        return self.count > 0 and now < self.next_start

    @property
    def trial(self) -> bool:
        """Whether to start a single unit, and to capture its output."""
        return self.at_start and self.count >= TRIAL_AFTER

    @property
    def text(self) -> str:
        """What to report. It stays the same until the next failure, so that it is logged once."""
        soon = f"{self.pause:g} s later" if self.pause else "in the next pass"
        return f"{self.problem} (failures in a row: {self.count}; the next start is {soon})"
