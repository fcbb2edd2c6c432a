"""What may become of a run: the signals that handlers raise, and what they and all else are turned into."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leasehold.durations import Duration, seconds
from leasehold.errors import PayloadError

if TYPE_CHECKING:
    from leasehold.retry import RetryPolicy


class Signal(Exception):
    """Base of what a handler raises to say what becomes of its item. None of them is an error."""


class Retry(Signal):
    """Try the item again later. The run counts as an attempt; after the last, the item is a dead letter.

    Args:
        reason: Why; it is kept with a dead letter.
        delay: How long to wait, in seconds; None: as long as the retry policy says.
    """

    def __init__(
        self, reason: str = "the handler asked for a retry", *, delay: Duration | None = None
    ) -> None:
        self.delay = None if delay is None else seconds("delay", delay, zero=True)
        super().__init__(reason)


class Snooze(Signal):
    """Put the item aside for a while. The run does not count as an attempt.

    Args:
        delay: How long, in seconds.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds("delay", delay, zero=True)
        super().__init__(f"asked for again in {self.delay:g} s")

    def __reduce__(self) -> tuple[type[Snooze], tuple[float]]:
        # On its way from another process it is made anew, of what it was made of.
        return type(self), (self.delay,)


class Reject(Signal):
    """Make the item a dead letter now: trying again is no use.

    Args:
        reason: Why; it is kept with the dead letter.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Complete:
    """The item is done; `result` is kept if it is not None."""

    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The attempt failed; try again in so many seconds, or (None) make it a dead letter."""

    error: str
    retry_in: float | None


@dataclass(frozen=True, slots=True)
class Release:
    """The run was no attempt: back to the front, or to the end, perhaps after a while out of sight."""

    delay: float = 0.0
    front: bool = True


Outcome = Complete | Fail | Release
DONE = Complete()
INTERRUPTED = Release()


def outcome_of(error: BaseException, *, attempt: int, policy: RetryPolicy) -> Outcome:
    """What an exception makes of an item.

    Args:
        error: What the handler raised.
        attempt: The number of the attempt, beginning with 1.
        policy: When to try again.
    """
    if isinstance(error, Snooze):
        return Release(error.delay, front=False)
    if isinstance(error, Retry):
        if attempt >= policy.attempts:
            return Fail(_because(error), None)
        return Fail(_because(error), policy.wait(attempt) if error.delay is None else error.delay)
    if isinstance(error, (Reject, PayloadError)):
        return Fail(_because(error), None)
    return Fail("".join(traceback.format_exception(error)), policy.delay_after(attempt, error))


def in_short(error: BaseException) -> str:
    """An error in one line, also if it is of a class whose text cannot be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - it is a user's code that makes the text
        return type(error).__name__


def poisoned(attempt: int) -> Fail:
    """What becomes of an item whose last run left no outcome, as when it kills its worker."""
    return Fail(
        f"Its {attempt - 1} attempts are used up, and the last one left no outcome: its worker died, "
        "or the lease was lost. It was not run again.",
        None,
    )


def _because(error: BaseException) -> str:
    """The reason, and what it was raised from."""
    cause = error.__cause__ or error.__context__
    text = in_short(error)
    return text if cause is None else f"{text}\n\n" + "".join(traceback.format_exception(cause))
