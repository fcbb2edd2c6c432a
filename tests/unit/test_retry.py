"""Retries: attempts, growing waits, jitter, and rules for exceptions."""

from __future__ import annotations

import statistics
from datetime import timedelta
from typing import Any

import pytest

from leasequeue import InvalidArgument, errors
from leasequeue.durations import Backoff
from leasequeue.worker.retry import RetryPolicy

STEADY = RetryPolicy(first=1, longest=60, jitter=False)


@pytest.mark.seed("GLD-O18")
def test_waits_double_up_to_the_longest() -> None:
    assert [STEADY.wait(attempt) for attempt in (1, 2, 3, 6, 7, 8, 10**6)] == [1, 2, 4, 32, 60, 60, 60]
    slower = RetryPolicy(first=timedelta(seconds=2), factor=1, jitter=False)
    assert [slower.wait(attempt) for attempt in (1, 5)] == [2, 2]
    assert RetryPolicy(first=1, factor=1000, longest=timedelta(days=1), jitter=False).wait(10**6) == 86400


def test_full_jitter_is_random_between_zero_and_the_wait() -> None:
    policy = RetryPolicy(first=8, longest=64)
    waits = [policy.wait(3) for _ in range(4000)]
    assert min(waits) >= 0
    assert max(waits) <= 32
    assert min(waits) < 4
    assert max(waits) > 28
    assert 14 < statistics.mean(waits) < 18
    assert policy.wait(100) <= 64


def test_no_retry_follows_the_last_attempt() -> None:
    policy = RetryPolicy(attempts=3, first=0)
    assert [policy.delay_after(attempt, ValueError()) for attempt in (1, 2, 3, 4)] == [0, 0, None, None]
    assert RetryPolicy(attempts=1).delay_after(1, ValueError()) is None


def test_the_closest_class_of_an_exception_decides() -> None:
    policy = RetryPolicy(
        attempts=5,
        first=1,
        jitter=False,
        rules={
            OSError: RetryPolicy(attempts=2, first=7, jitter=False),
            ConnectionError: "never",
            ConnectionResetError: RetryPolicy(attempts=9, first=3, factor=1, jitter=False),
        },
    )
    assert policy.delay_after(1, ValueError()) == 1
    assert policy.delay_after(4, ValueError()) == 8
    assert policy.delay_after(1, TimeoutError()) == 7
    assert policy.delay_after(2, TimeoutError()) is None
    assert policy.delay_after(1, BrokenPipeError()) is None
    assert policy.delay_after(8, ConnectionResetError()) == 3
    assert policy.delay_after(9, ConnectionResetError()) is None
    assert policy.max_attempts == 9


def test_max_attempts_includes_nested_rules() -> None:
    deep = RetryPolicy(attempts=2, rules={OSError: RetryPolicy(attempts=1, rules={KeyError: STEADY})})
    assert deep.max_attempts == STEADY.attempts
    assert RetryPolicy(attempts=4, rules={OSError: "never"}).max_attempts == 4


@pytest.mark.parametrize(
    "options",
    [
        *({"attempts": bad} for bad in (0, True, 1.5)),
        *({"first": bad} for bad in (-1, "soon")),
        *({"longest": bad} for bad in (float("nan"), timedelta(days=31))),
        *({"factor": bad} for bad in (0.5, "2", float("nan"))),
        *({"jitter": bad} for bad in (None, 1, "yes")),
        *({"rules": bad} for bad in (None, 5, "never", [ValueError])),
        *({"rules": {ValueError: bad}} for bad in ("always", 3)),
        *({"rules": {bad: "never"}} for bad in (ValueError(), "ValueError", int)),
    ],
)
def test_invalid_policies_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RetryPolicy(**options)


def test_a_backoff_doubles_up_to_its_longest_wait_and_restarts_after_a_success() -> None:
    backoff = Backoff(first=0.1, longest=1.0)
    waits = [backoff.next() for _ in range(100)]
    for wait, upper in zip(waits, [0.1, 0.2, 0.4, 0.8] + [1.0] * 96, strict=True):
        assert upper / 2 <= wait <= upper
    assert len(set(waits)) > 90
    assert backoff.failures == 100
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next() <= 0.1


def test_a_backoff_does_not_overflow() -> None:
    backoff = Backoff(first=0.1, longest=1.0)
    backoff.failures = 10**6
    assert backoff.next() <= 1.0


def test_only_errors_of_a_server_that_may_come_back_are_transient() -> None:
    classes = [kind for name in dir(errors) if isinstance(kind := getattr(errors, name), type)]
    transient = {
        kind.__name__ for kind in classes if issubclass(kind, errors.LeasequeueError) and kind.transient
    }
    assert transient == {
        "ConnectionLost",
        "NotReplicated",
        "PartlyApplied",
        "ProcessOutOfMemory",
        "ServerBusy",
        "ServerOutOfMemory",
        "ServerReadOnly",
        "TooManyConnections",
    }
