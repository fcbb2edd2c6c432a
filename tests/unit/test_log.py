"""A logger that never raises."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leasequeue.log import Log

if TYPE_CHECKING:
    import pytest


def test_a_log_line_has_its_source_and_its_extra_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = Log("leasequeue.tests")
    caplog.set_level(logging.INFO, "leasequeue.tests")
    log.warning("%d of %d", 1, 2, extra={"item": "a"})
    log.debug("not asked for")
    (record,) = caplog.records
    assert (record.getMessage(), record.__dict__["item"], record.name) == ("1 of 2", "a", "leasequeue.tests")
    assert (record.filename, record.funcName) == (
        "test_log.py",
        test_a_log_line_has_its_source_and_its_extra_fields.__name__,
    )


def test_a_failing_log_line_is_reported_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Log("leasequeue.tests").error("%d", "no number")
    assert "TypeError: %d format" in capsys.readouterr().err
