"""Retries of items whose handler failed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from leasequeue.durations import Duration, check_bool, check_int, seconds
from leasequeue.errors import InvalidArgument

#: How to treat exceptions of a class: no retry, or another policy.
Rule: TypeAlias = "Literal['never'] | RetryPolicy"


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often an item is tried, and how long it waits after each failure.

    The upper end of the wait doubles with each failure, up to `longest`. The wait is a random time between 0
    and that ("full jitter"), so that items which failed together are not retried together. By default an item
    is tried five times, within 15 seconds if each attempt fails at once.

        >>> RetryPolicy(attempts=3).delay_after(3, ValueError()) is None
        True

    Attributes:
        attempts: The maximum number of attempts in all; 1 is no retry.
        first: The upper end of the wait after the first failure, in seconds.
        longest: The longest wait, in seconds.
        factor: By what factor the upper end grows with each failure.
        jitter: Whether the wait is random; if not, it is the upper end.
        rules: For exceptions of a class or its subclasses: `"never"` for no retry, or another policy. The
            closest class among the exception's ancestors decides.

    Raises:
        InvalidArgument: If an argument is invalid.
    """

    attempts: int = 5
    first: Duration = 1.0
    longest: Duration = 3600.0
    factor: float = 2.0
    jitter: bool = True
    rules: Mapping[type[BaseException], Rule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_int("attempts", self.attempts, minimum=1, maximum=1_000_000)
        seconds("first", self.first, zero=True)
        seconds("longest", self.longest, zero=True)
        if not isinstance(self.factor, (int, float)) or not 1 <= self.factor <= 1000:
            raise InvalidArgument("factor", self.factor, "a number from 1 to 1,000")
        check_bool("jitter", self.jitter)
        if not isinstance(self.rules, Mapping):
            raise InvalidArgument("rules", self.rules, "a mapping whose keys are exception classes")
        for kind, rule in self.rules.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidArgument("rules", kind, "exception classes as keys")
            if rule != "never" and not isinstance(rule, RetryPolicy):
                raise InvalidArgument("rules", rule, '"never" or a RetryPolicy')

    @property
    def max_attempts(self) -> int:
        """The maximum number of attempts that this policy or one of its rules allows."""
        nested = (rule.max_attempts for rule in self.rules.values() if isinstance(rule, RetryPolicy))
        return max(self.attempts, *nested, 1)

    def delay_after(self, attempt: int, error: BaseException) -> float | None:
        """Return how long to wait after a failure, in seconds; None: no retry.

        Args:
            attempt: The number of the attempt that failed, beginning with 1.
            error: The exception of the attempt.
        """
        rule = next((self.rules[kind] for kind in type(error).__mro__ if kind in self.rules), None)
        if rule == "never":
            return None
        if isinstance(rule, RetryPolicy):
            return rule.delay_after(attempt, error)
        if attempt >= self.attempts:
            return None
        return self.wait(attempt)

    def wait(self, attempt: int) -> float:
        """Return how long to wait after so many failures, in seconds."""
        longest = seconds("longest", self.longest, zero=True)
        first = seconds("first", self.first, zero=True)
        # Larger powers may overflow; `longest` is reached long before.
        upper = min(longest, first * self.factor ** min(attempt - 1, 60))
        return random.uniform(0, upper) if self.jitter else upper  # noqa: S311 - no secret
