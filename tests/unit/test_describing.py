"""Any exception and any value has a text, and a logger that writes them never raises."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

import pytest

from leasequeue.errors import (
    BackendError,
    ConnectionLost,
    FlowRunUnfinished,
    InvalidArgument,
    JobFailed,
    JobUnknown,
    LeaseLost,
    LeasequeueError,
    PayloadError,
    ResultError,
    ResultMismatch,
    ScriptFailed,
    WorkerUnknown,
)
from leasequeue.errors.describing import (
    describe,
    full_traceback_of,
    indented,
    plain,
    shown,
    text_of,
    traceback_of,
)
from leasequeue.errors.log import Log
from leasequeue.queue.encoding import error_text
from tests.hostile import LONG, TEXT, harm_of
from tests.unreadable import UNREADABLE, Delegating, Escape, Silent

if TYPE_CHECKING:
    from collections.abc import Callable


def raised(make: Callable[[], BaseException]) -> BaseException:
    def fails() -> None:
        raise make()

    try:
        fails()
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("it was not raised")


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_any_exception_has_a_text_with_the_frames_it_was_raised_from(
    make: Callable[[], BaseException],
) -> None:
    error = raised(make)
    name = type(error).__name__
    assert describe(error).startswith(name)
    assert text_of(error)
    assert name in traceback_of(error)
    assert "in fails" in traceback_of(error)
    assert name.encode() in error_text(error)


def test_what_cannot_be_shown_is_named_by_its_type() -> None:
    assert describe(Silent()) == "Silent (its text cannot be shown)"
    assert text_of(Silent()) == "Silent"
    assert shown(Silent()) == "a value of type Silent (it cannot be shown)"
    assert InvalidArgument("item", Silent(), "an Item").given == shown(Silent())


def test_a_usual_exception_has_its_causes_and_notes() -> None:
    error = ValueError("bad")
    error.__cause__ = KeyError("cause")
    error.add_note("a note")
    assert traceback_of(error) == full_traceback_of(error)
    assert all(part in traceback_of(error) for part in ("KeyError: 'cause'", "ValueError: bad", "a note"))
    assert (describe(error), text_of(error), text_of(ValueError())) == (
        "ValueError: bad",
        "bad",
        "ValueError",
    )


def test_a_key_that_the_user_has_pressed_still_interrupts() -> None:
    class Pressed(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        describe(Pressed())


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE)
def test_any_exception_can_be_logged(
    make: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    error = raised(make)
    log = Log("leasequeue.tests")
    log.error("it failed", exc_info=error)
    try:
        raise error  # noqa: TRY301 - as user's code does
    except BaseException:
        log.exception("it failed again")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert caplog.text.count("in fails") == 2


@pytest.mark.parametrize("make", [Delegating, Escape])
def test_a_log_line_that_fails_is_reported_on_stderr(
    make: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            raise make("no line")

    failing = Failing()
    logger = logging.getLogger("leasequeue.tests")
    logger.addHandler(failing)
    try:
        Log("leasequeue.tests").error("it failed")
    finally:
        logger.removeHandler(failing)
    assert f"{make.__name__}: no line" in capsys.readouterr().err


def test_a_log_line_has_its_source_and_its_extra_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = Log("leasequeue.tests")
    caplog.set_level(logging.INFO, "leasequeue.tests")
    log.warning("%d of %d", 1, 2, extra={"item": "a"})
    log.debug("not asked for")
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["item"], record.name) == ("1 of 2", "a", "leasequeue.tests")
    assert (record.filename, record.funcName) == (
        "test_describing.py",
        test_a_log_line_has_its_source_and_its_extra_fields.__name__,
    )


def test_a_failing_log_line_is_reported_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Log("leasequeue.tests").error("%d", "no number")
    assert "TypeError: %d format" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------- texts of others


@pytest.mark.parametrize(
    ("text", "shown_as"),
    [
        ("plain gruß ✓ 漢", "plain gruß ✓ 漢"),
        ("a\nb\r\x1b[2J\0\t", "a\\nb\\r\\x1b[2J\\x00\t"),
        ("\x9b\u2028\u202e\udcff\ud800", "\\x9b\\u2028\\u202e\\udcff\\ud800"),
        ("y" * 200, "y" * 200),
        ("y" * 1_000_000, "y" * 200 + "… (1,000,000 characters)"),
        ("\n" * 201, "\\n" * 200 + "… (201 characters)"),
    ],
)
def test_a_text_of_others_is_a_part_of_one_line(text: str, shown_as: str) -> None:
    assert plain(text) == shown_as
    assert plain(text).encode()
    assert plain(text, None).isprintable() or "\t" in text


def test_a_text_of_several_lines_has_no_line_that_looks_like_one_of_a_log() -> None:
    assert indented("one\n2026-01-01 ERROR\x1b\n\nend") == "one\n  2026-01-01 ERROR\\x1b\n\n  end"
    cut = indented("begin" + "y" * 1_000_000 + "end")
    assert len(cut) < 4_100
    assert (cut.startswith("begin"), cut.endswith("end"), "(1,000,008 characters)" in cut) == (True,) * 3


@pytest.mark.parametrize(
    "error",
    [
        JobFailed(LONG, f"ValueError: {LONG}", stage=LONG),
        JobFailed(TEXT, TEXT),
        JobUnknown(LONG),
        LeaseLost(LONG, 7),
        PayloadError(LONG, "Order", TEXT),
        ResultError(LONG, LONG),
        WorkerUnknown(LONG),
        InvalidArgument("id", LONG, "an id"),
        FlowRunUnfinished(LONG),
        ResultMismatch(LONG, LONG),
        ConnectionLost(LONG, maybe_applied=True),
        ScriptFailed(LONG),
        BackendError("kubernetes", LONG, LONG),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_text_of_an_error_and_its_traceback_are_harmless(error: LeasequeueError) -> None:
    for found in (f"{error}", text_of(error), describe(error), "".join(traceback.format_exception(error))):
        assert harm_of(found, longest=5_000) == []
        assert len(found) < 20_000
