"""Texts of exceptions and values, also of those whose methods raise errors."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 unit`, `2 units`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe(error: BaseException) -> str:
    """Return the name of an exception's class and its text: `ValueError: bad`. It never fails."""
    return (
        _attempt(lambda: f"{type(error).__name__}: {error}")
        or f"{type(error).__name__} (its text cannot be shown)"
    )


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or, if it has none, the name of its class. It never fails."""
    return _attempt(lambda: f"{error}") or type(error).__name__


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, as the interpreter prints it. It never fails.

    If that cannot be made, the text has the exception's own traceback, without causes and contexts; if that
    cannot be made either, what `describe` returns.
    """
    return full_traceback_of(error) or _plain_traceback(error)


def full_traceback_of(error: BaseException) -> str | None:
    """Return the traceback of an exception, as the interpreter prints it; None if it cannot be made."""
    return _attempt(lambda: "".join(traceback.format_exception(error)))


def shown(value: object) -> str:
    """Return the `repr` of a value. It never fails."""
    return _attempt(lambda: f"{value!r}") or f"a value of type {type(value).__name__} (it cannot be shown)"


def _attempt(make: Callable[[], str]) -> str | None:
    """Return a text, or None if the code that makes it raises: it is that of the user's classes."""
    try:
        return make()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - also SystemExit: a text must not end the process
        return None


def _plain_traceback(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    notes = _attempt(lambda: "".join(f"{note}\n" for note in error.__notes__))
    head = f"Traceback (most recent call last):\n{frames}" if frames else ""
    return f"{head}{describe(error)}\n{notes or ''}"
