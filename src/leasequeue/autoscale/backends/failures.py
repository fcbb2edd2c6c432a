"""A row of units that failed: how long to wait before the next start, and why they failed."""

from __future__ import annotations

from leasequeue.log import Log

#: The first and the longest pause between a failure and the next start (s).
FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0
#: After so many failures before the unit was at work, only one is started.
SINGLE_AFTER = 2

log = Log("leasequeue.autoscale")


class Failures:
    """Counts the failures of a row. All times are those of one clock, in seconds.

    Args:
        target: The deployment and the tier, for the log.

    Attributes:
        count: How many there were, those that were noticed together counted once; 0: the row has ended.
        problem: What was wrong with the last one.
        at_start: Whether that was before it was at work.
        explained: Whether the problem quotes what the unit wrote, or that was tried.
        since: When the first one was noticed.
        last: When the last one was.
        logged: Whether the last one was logged, or reported.
        pause: How long after the last one the next unit may be started.
        next_start: When that is.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self.count = 0
        self.problem = ""
        self.at_start = False
        self.explained = self.logged = True
        self.since = self.last = self.pause = self.next_start = 0.0

    def add(self, problem: str, now: float, *, at_start: bool, explained: bool = True) -> None:
        """Add a failure; the pause before the next start doubles.

        There is none after a unit that was at work, if it is the first of the row: it may have been killed.
        """
        self.explained = explained or self.count > 0
        if not self.count:
            self.since = now
        self.count += 1
        self.problem, self.at_start, self.last, self.logged = problem, at_start, now, False
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(self.count - 1, 10))
        self.pause = pause if at_start or self.count > 1 else 0.0
        self.next_start = now + self.pause

    def add_ends(self, ends: list[tuple[bool, str, bool]], now: float) -> None:
        """Add the ends of units as one failure, that of a unit whose output is known; log the others.

        Args:
            ends: Of each unit, whether its output is quoted, how it ended, and whether that was at its start.
            now: The time.
        """
        self.log()
        *others, (quoted, problem, at_start) = sorted(ends)
        for _, text, _ in others:
            log.warning("%s: %s", self._target, text)
        self.add(problem, now, at_start=at_start, explained=quoted)

    def explain(self, problem: str, now: float) -> None:
        """Note why the last failure was one, as another unit that was started to see it has failed, too."""
        self.problem, self.next_start = problem, now + self.pause

    def log(self) -> None:
        """Log the last failure, if it was neither logged nor reported: the loop logs what is reported."""
        if not self.logged:
            log.warning("%s: %s", self._target, self.problem)
            self.logged = True

    def began(self, began: float) -> None:
        """Note that a unit is at work which was started then: units no longer fail at their start."""
        if began >= self.last:
            self.at_start = False

    def lives(self, began: float, *, was_ready: bool) -> None:
        """Note that a unit has lived for long, which ends the row, unless no unit was at work."""
        if began > self.since and (was_ready or not self.at_start):
            self.count, self.problem, self.at_start, self.logged = 0, "", False, True

    def stands(self, wanted: int, running: int, at_work: int) -> bool:
        """Return whether the last failure is still to be reported."""
        return self.count > 0 and (at_work if self.at_start else running) < wanted

    def pauses(self, now: float) -> bool:
        """Return whether no unit may be started now."""
        return self.count > 0 and now < self.next_start

    @property
    def single(self) -> bool:
        """Whether to start a single unit, to see whether it gets to work."""
        return self.at_start and self.count >= SINGLE_AFTER

    @property
    def text(self) -> str:
        """What to report. It stays the same until the next failure, so that it is logged once."""
        soon = f"{self.pause:g} s later" if self.pause else "in the next pass"
        return f"{self.problem} (failures in a row: {self.count}; the next start is {soon})"
