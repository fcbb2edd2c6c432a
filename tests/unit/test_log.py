"""Log lines that end nothing."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasehold.log import Log

if TYPE_CHECKING:
    import pytest


def test_a_line_says_where_it_was_written_and_brings_what_it_is_given(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log("leasehold.tests")
    caplog.set_level(logging.INFO, "leasehold.tests")
    log.warning("%d of %d", 1, 2, extra={"item": "a"})
    log.debug("not asked for")
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["item"], record.name) == ("1 of 2", "a", "leasehold.tests")
    assert (record.filename, record.funcName) == (
        "test_log.py",
        test_a_line_says_where_it_was_written_and_brings_what_it_is_given.__name__,
    )


def test_a_line_that_cannot_be_made_is_shown_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Log("leasehold.tests").error("%d", "no number")
    assert "TypeError: %d format" in capsys.readouterr().err
