"""The class and the text of an error are read from what is kept of it."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from leasequeue import JobFailed, JobUnknown
from leasequeue.errors import InvalidCall, InvalidTask, ResultError, summary_of
from leasequeue.errors.describing import traceback_of
from leasequeue.worker import RetryPolicy
from leasequeue.worker.outcomes import Fail, Reject, attempts_used_up, outcome_of

if TYPE_CHECKING:
    from leasequeue import LeasequeueError


class Lost(Exception):
    """An error of a user."""


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause  # noqa: TRY301 - for its traceback
    except Exception as caught:  # noqa: BLE001 - as above
        return caught


def chained() -> Exception:
    return raised(ValueError("two\n  lines"), raised(Lost("where: here")))


def group() -> Exception:
    members = [ValueError("a"), raised(ExceptionGroup("inner", [Lost("b"), KeyError("c")]))]
    return raised(ExceptionGroup("two\n  lines", members), chained())


def kept(error: BaseException) -> str:
    """Return what a dead letter keeps of an exception."""
    outcome = outcome_of(error, 1, RetryPolicy(attempts=1))
    assert isinstance(outcome, Fail)
    return outcome.error


#: An error whose text another one has, such as that of a program that was run.
LOST = raised(Lost("where: here"))


def rejected() -> Reject:
    reject = Reject("no such user")
    reject.__cause__ = chained()
    return reject


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (kept(chained()), "ValueError", "two\n  lines"),
        (kept(ValueError()), "ValueError", ""),
        (kept(Lost("where: here")), "tests.unit.test_job_errors.Lost", "where: here"),
        (kept(group()), "ExceptionGroup", "two\n  lines (2 sub-exceptions)"),
        (kept(raised(Lost("after"), group())), "tests.unit.test_job_errors.Lost", "after"),
        (kept(raised(ValueError(f"it said\n{kept(LOST)}"))), "ValueError", f"it said\n{kept(LOST)}".strip()),
        (kept(Reject("no: never")), "Reject", "no: never"),
        (kept(rejected()).splitlines()[0], "Reject", "no such user"),
        (attempts_used_up(3).error, "", attempts_used_up(3).error),
        ("given up", "", "given up"),
        ("", "", ""),
        ("panic in thread 7: index out of range", "", "panic in thread 7: index out of range"),
    ],
)
def test_the_class_and_the_text_of_an_error_are_read(error: str, kind: str, message: str) -> None:
    failed = JobFailed("m1", error)
    assert (failed.type, failed.message, failed.error, failed.item_id) == (kind, message, error, "m1")
    assert str(failed).startswith("'m1' has failed")


def test_a_signal_with_a_cause_is_read_as_the_signal() -> None:
    failed = JobFailed("m1", kept(rejected()))
    assert failed.type == "Reject"
    assert failed.message.startswith("no such user")


@pytest.mark.parametrize(
    "error",
    [
        *(JobFailed("x", traceback_of(chained())), JobUnknown("x"), ResultError("x", "no")),
        *(InvalidTask("send", "no"), InvalidCall("send", "no")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_tasks_can_be_copied_and_pickled(error: LeasequeueError) -> None:
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert type(made) is type(error)
        assert (str(made), vars(made)) == (str(error), vars(error))


def test_a_dead_letter_is_shown_with_its_last_error() -> None:
    for error in (group(), raised(ExceptionGroup("g", [ValueError(), ValueError()]))):
        assert str(JobFailed("m1", kept(error))).endswith(" sub-exceptions)")


class Order(BaseModel):
    """What an item may be."""

    total: int
    name: str


def test_the_summary_of_an_error_of_pydantic_names_the_fields_and_no_page() -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - its text is what is tested
        Order.model_validate({"total": "x"})
    summary = summary_of(kept(caught.value))
    assert summary.startswith(
        "ValidationError: 2 validation errors for Order; total: Input should be a valid integer"
    )
    assert "; name: Field required [" in summary
    assert "further information" not in summary


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (kept(chained()), "ValueError: two: lines"),
        (kept(ValueError()), "ValueError"),
        (kept(Lost("\n".join("123456789"))), f"tests.unit.test_job_errors.Lost: {'; '.join('1234567')} …"),
        ("given up", "given up"),
        ("Traceback\n  a line\nbad\n  more\n", "bad"),
        ("given up\nafter a while", "given up"),
        ("", ""),
    ],
)
def test_an_error_is_summed_up_in_a_line(error: str, summary: str) -> None:
    assert summary_of(error) == summary
