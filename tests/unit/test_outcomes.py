"""An exception of a handler leads to an outcome."""

from __future__ import annotations

import copy
import pickle

import pytest

from leasequeue import InvalidArgument
from leasequeue.errors import PayloadError
from leasequeue.worker import Reject, Retry, Signal, Snooze
from leasequeue.worker.outcomes import Fail, Outcome, Release, attempts_used_up, outcome_of
from leasequeue.worker.retry import RetryPolicy
from tests.docs.pages import REFERENCE

DECLARATIONS = ("counted_as", "is_attempt", "acknowledge", "__str__")
POLICY = RetryPolicy(attempts=3, first=10, jitter=False, rules={KeyError: "never"})


def decided(error: BaseException, attempt: int = 1) -> Outcome:
    return outcome_of(error, attempt=attempt, policy=POLICY)


def failed(error: BaseException, attempt: int = 1) -> Fail:
    outcome = decided(error, attempt)
    assert isinstance(outcome, Fail)
    return outcome


def test_a_snooze_releases_to_the_end_at_any_attempt() -> None:
    assert decided(Snooze(5), attempt=99) == Release(5, front=False)
    assert decided(Snooze(0)) == Release(0, front=False)


def test_a_retry_waits_for_its_delay_or_as_the_policy_says_until_the_last_attempt() -> None:
    assert failed(Retry("later", delay=7)) == Fail("Retry: later", 7)
    assert failed(Retry(delay=0), attempt=2).retry_in == 0
    assert failed(Retry(), attempt=2).retry_in == 20
    assert failed(Retry(delay=7), attempt=3).retry_in is None


@pytest.mark.parametrize("error", [Reject("no use"), PayloadError("id", "int", "it is none")])
def test_a_rejected_item_is_not_tried_again(error: Exception) -> None:
    assert failed(error) == Fail(f"{type(error).__name__}: {error}", None)


def test_the_policy_decides_on_any_other_exception_whose_traceback_is_kept() -> None:
    def fails() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad") as raised:
        fails()
    first, last = failed(raised.value), failed(raised.value, attempt=3)
    assert (first.retry_in, last.retry_in) == (10, None)
    assert first.error == last.error
    assert "in fails" in last.error
    assert last.error.endswith("ValueError: bad\n")
    assert failed(KeyError()).retry_in is None
    assert failed(SystemExit(3)).retry_in == 10


def test_the_error_of_an_item_without_an_outcome_names_its_attempts() -> None:
    outcome = attempts_used_up(4)
    assert outcome.retry_in is None
    assert outcome.error.startswith("Its 3 attempts are used up")


@pytest.mark.parametrize("missing", ["counted_as", "is_attempt", "acknowledge", "__str__"])
def test_an_outcome_that_does_not_declare_everything_cannot_be_defined(missing: str) -> None:
    declarations = {name: value for name, value in vars(Fail).items() if name in DECLARATIONS}
    assert len(declarations) == len(DECLARATIONS)
    del declarations[missing]
    with pytest.raises(TypeError, match=f"the outcome Park does not declare {missing}"):
        type("Park", (Outcome,), declarations)


def test_the_reference_lists_every_outcome() -> None:
    page = (REFERENCE / "worker.md").read_text()
    for name, outcome in Outcome.declared.items():
        assert f"| `{name}` | {'yes' if outcome.is_attempt else 'no'} |" in page


@pytest.mark.parametrize("signal", [Retry("why", delay=3), Retry(), Snooze(5), Reject("why")])
def test_signals_can_be_pickled_and_copied(signal: Signal) -> None:
    for other in (copy.copy(signal), pickle.loads(pickle.dumps(signal))):  # noqa: S301 - our own
        assert type(other) is type(signal)
        assert (str(other), vars(other)) == (str(signal), vars(signal))


@pytest.mark.parametrize("delay", [-1, "soon", float("nan")])
def test_an_invalid_delay_is_rejected(delay: float) -> None:
    with pytest.raises(InvalidArgument):
        Retry(delay=delay)
    with pytest.raises(InvalidArgument):
        Snooze(delay)
