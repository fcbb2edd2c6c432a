"""How runs end: the signals that handlers raise, and the outcomes that the worker sends to the server.

To add an outcome, declare it here: a subclass of `Outcome`, and the exceptions that lead to it in
`by_exception`. The rest of the worker reads the declaration.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from leasequeue.durations import Duration, seconds
from leasequeue.errors import InvalidFanOut, PayloadError, ResultMismatch
from leasequeue.errors.describing import describe, traceback_of
from leasequeue.queue.lease import Failure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from leasequeue.queue.lease import Lease
    from leasequeue.queue.queue import AsyncWorkQueue
    from leasequeue.worker.retry import RetryPolicy


class Signal(Exception):
    """Base of the exceptions by which a handler chooses the outcome of its item. None of them is an error."""


class Retry(Signal):
    """Try the item again later. The run counts as an attempt; after the last one, the item is a dead letter.

    Args:
        reason: Why; kept with a dead letter.
        delay: How long to wait, in seconds; None: as the retry policy says.
    """

    def __init__(
        self, reason: str = "the handler asked for a retry", *, delay: Duration | None = None
    ) -> None:
        self.delay = None if delay is None else seconds("delay", delay, zero=True)
        super().__init__(reason)


class Snooze(Signal):
    """Release the item to the end of the queue, after a delay. The run does not count as an attempt.

    Args:
        delay: How long to wait, in seconds.
    """

    def __init__(self, delay: Duration) -> None:
        self.delay = seconds("delay", delay, zero=True)
        super().__init__(f"snoozed for {self.delay:g} s")

    def __reduce__(self) -> tuple[type[Snooze], tuple[float]]:
        # Pickle calls the constructor with `args`, which holds the text and not the delay.
        return type(self), (self.delay,)


class HandedOver(Snooze):
    """Leave a stage of a flow run open: another system works on it, and reports its end with `runs.report`.

    If it is not reported in time, the stage runs again. This run does not count as an attempt.

    Args:
        timeout: How long to wait for the report, in seconds.
    """

    def __init__(self, timeout: Duration = 86_400) -> None:
        super().__init__(timeout)
        Exception.__init__(self, f"handed over for {self.delay:g} s")


class Reject(Signal):
    """Make the item a dead letter now: another attempt would not help.

    Args:
        reason: Why; kept with the dead letter.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


class Outcome:
    """How a run ended for one of its items. A subclass declares all that the worker needs to know of it.

    Raises:
        TypeError: When a subclass lacks one of the declarations, or is counted as another one is.
    """

    __slots__ = ()

    #: The outcomes that have been declared, by what they are counted as.
    declared: ClassVar[dict[str, type[Outcome]]] = {}
    #: What the worker's summary counts it as: "5 completed".
    counted_as: ClassVar[str]
    #: Whether the run counts as one of the item's attempts.
    is_attempt: ClassVar[bool]
    #: The outcome that it is counted as, since it is that for other items; None: it has its own count.
    like: ClassVar[type[Outcome] | None] = None

    def __init_subclass__(cls) -> None:
        for name in ("counted_as", "is_attempt", "acknowledge", "__str__"):
            if name not in vars(cls):
                raise TypeError(f"the outcome {cls.__name__} does not declare {name}")
        other = Outcome.declared.setdefault(cls.counted_as, cls)
        if cls.like is other:
            return
        if other.__qualname__ != cls.__qualname__:  # a dataclass with slots is defined twice
            raise TypeError(
                f"the outcomes {other.__name__} and {cls.__name__} are both counted as {cls.counted_as!r}"
            )
        Outcome.declared[cls.counted_as] = cls

    def __str__(self) -> str:
        """Describe what happens to the item next, in a few words, for the log."""
        raise NotImplementedError

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Send the outcomes of these leases in one call; return for each whether the server accepted it."""
        raise NotImplementedError

    @property
    def group(self) -> object:
        """A hashable key: outcomes of one handler with equal keys share a call."""
        return type(self)

    @property
    def is_final(self) -> bool:
        """Whether the item has failed for the last time."""
        return False


@dataclass(frozen=True, slots=True)
class Complete(Outcome):
    """The item is done.

    Attributes:
        result: What to keep as its result.
        keep_result: How long to keep the result, in seconds; None: not at all.
    """

    counted_as = "completed"
    is_attempt = True

    result: bytes | None = None
    keep_result: float | None = None

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Complete the items."""
        keep = outcomes[0].keep_result
        if keep is None:
            return await queue.complete_many(leases)
        results = [outcome.result for outcome in outcomes]
        return await queue.complete_many(leases, results=results, keep_result=keep)

    @property
    def group(self) -> object:
        """Items whose results are kept for the same time."""
        return type(self), self.keep_result

    def __str__(self) -> str:
        return "completed"


@dataclass(frozen=True, slots=True)
class Fail(Outcome):
    """The attempt failed.

    Attributes:
        error: What went wrong; kept with the item.
        retry_in: When to try again, in seconds; None: the item becomes a dead letter.
    """

    counted_as = "failed"
    is_attempt = True

    error: str
    retry_in: float | None

    def __post_init__(self) -> None:
        # A policy or a signal of the user's may say anything.
        if self.retry_in is not None:
            seconds("retry_in", self.retry_in, zero=True)

    @property
    def is_final(self) -> bool:
        """Whether the item becomes a dead letter."""
        return self.retry_in is None

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Fail the items."""
        pairs = zip(leases, outcomes, strict=True)
        return await queue.fail_many([Failure(lease, one.error, one.retry_in) for lease, one in pairs])

    def __str__(self) -> str:
        return "a dead letter now" if self.retry_in is None else f"retry in {self.retry_in:.1f} s"


@dataclass(frozen=True, slots=True)
class Release(Outcome):
    """Return the item to the queue; the run does not count as an attempt.

    Attributes:
        delay: When it can be leased again, in seconds.
        front: Whether it goes to the front of the queue, rather than to the end.
    """

    counted_as = "released"
    is_attempt = False

    delay: float = 0.0
    front: bool = True

    def __post_init__(self) -> None:
        seconds("delay", self.delay, zero=True)

    @classmethod
    async def acknowledge(
        cls, queue: AsyncWorkQueue, leases: Sequence[Lease], outcomes: Sequence[Self]
    ) -> list[bool]:
        """Release the items."""
        how = outcomes[0]
        return await queue.release_many(leases, delay=how.delay, front=how.front)

    @property
    def group(self) -> object:
        """Items that go to the same place after the same delay."""
        return self

    def __str__(self) -> str:
        return f"released for {self.delay:.1f} s" if self.delay else "released"


DONE = Complete()
INTERRUPTED = Release()


def outcome_of(error: BaseException, attempt: int, policy: RetryPolicy) -> Outcome:
    """Decide the outcome of an item whose handler raised an exception at this attempt, the first being 1.

    Raises:
        TypeError: If the outcome registered for the exception is not an `Outcome`.
        InvalidArgument: If it waits for no duration. A policy and a signal of the user's may raise any error.
    """
    outcome = by_exception(error, attempt, policy)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"{type(error).__name__} leads to {outcome!r:.200}, which is no Outcome")
    return outcome


@functools.singledispatch
def by_exception(error: BaseException, attempt: int, policy: RetryPolicy) -> Outcome:
    """Return the outcome that an exception leads to. Functions for certain classes are registered below."""
    return Fail(traceback_of(error), policy.delay_after(attempt, error))


@by_exception.register(Signal)
def _(error: Signal, attempt: int, policy: RetryPolicy) -> Outcome:  # noqa: ARG001 - as above
    raise TypeError(f"no outcome is registered for the signal {type(error).__name__}: see by_exception")


@by_exception.register(Snooze)
def _(error: Snooze, attempt: int, policy: RetryPolicy) -> Outcome:  # noqa: ARG001 - as above
    return Release(error.delay, front=False)


@by_exception.register(Retry)
def _(error: Retry, attempt: int, policy: RetryPolicy) -> Outcome:
    if attempt >= policy.attempts:
        return Fail(_reason(error), None)
    return Fail(_reason(error), policy.wait(attempt) if error.delay is None else error.delay)


@by_exception.register(ResultMismatch)
@by_exception.register(InvalidFanOut)
def _(error: BaseException, attempt: int, policy: RetryPolicy) -> Outcome:  # noqa: ARG001 - as above
    return Fail(
        traceback_of(error), None
    )  # it is the program that is wrong: each attempt would end like this


@by_exception.register(Reject)
@by_exception.register(PayloadError)
def _(error: BaseException, attempt: int, policy: RetryPolicy) -> Outcome:  # noqa: ARG001 - as above
    return Fail(_reason(error), None)


def attempts_used_up(attempt: int) -> Fail:
    """Return the outcome of an item whose last attempt had none, for example because it killed its worker."""
    return Fail(
        f"Its {attempt - 1} attempts are used up, and the last one left no outcome: its worker died, "
        "or the lease was lost. It was not run again.",
        None,
    )


def consequences(outcomes: Sequence[Outcome]) -> str:
    """Describe in a few words what happens next to the items of a run, for the log."""
    counts = Counter(map(str, outcomes))
    shown = [text if count == 1 else f"{text} ({count} items)" for text, count in counts.most_common(3)]
    return ", ".join(shown) + (", and others" if len(counts) > 3 else "")


def _reason(error: BaseException) -> str:
    """Describe a signal, with the traceback of what it was raised from."""
    cause = error.__context__ if error.__cause__ is None else error.__cause__
    text = describe(error)
    return text if cause is None else f"{text}\n\n{traceback_of(cause)}"
