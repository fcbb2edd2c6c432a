"""Tasks that log, and can be sent to another process."""

from __future__ import annotations

import logging
import threading
from typing import Any

from leasequeue import correlation_id

log = logging.getLogger("tests.logging_tasks")


def work(thousands: int) -> None:
    """Log from this thread and from another one; then so many thousands of records, and fail."""
    log.setLevel(logging.INFO)
    log.info("begins %d", thousands)
    thread = threading.Thread(target=log.info, args=("in a thread",))
    thread.start()
    thread.join()
    for number in range(1000 * thousands):
        log.info("number %d", number)
    if thousands:
        raise ValueError(thousands)


def fields() -> list[Any]:
    """Return the attributes of a record that is logged here."""
    seen: list[Any] = []

    def note(record: logging.LogRecord) -> bool:
        seen.extend(vars(record).get(name) for name in ("task", "id", "attempt", "correlation"))
        return True

    handler = logging.NullHandler()
    handler.handle = note  # type: ignore[method-assign]
    log.addHandler(handler)
    log.warning("here")
    log.removeHandler(handler)
    assert correlation_id.get() == seen[-1]
    return seen
