"""Texts of exceptions and values of any class, also of one whose methods raise errors."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: A chain of more exceptions than this is shown without its causes and contexts.
MAX_CHAIN = 1000


def class_of(value: object) -> str:
    """Return the name of the class of an exception or of another value. It never fails."""
    return _name(value)


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 unit`, `2 units`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def describe(error: BaseException) -> str:
    """Return the name of an exception's class and its text: `ValueError: bad`. It never fails."""
    return _attempt(lambda: f"{_name(error)}: {error}") or f"{_name(error)} (its text cannot be shown)"


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or, if it has none, the name of its class. It never fails."""
    return _attempt(lambda: f"{error}") or _name(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception, as the interpreter prints it. It never fails.

    If that cannot be made, the text has the exception's own traceback, without causes and contexts; if that
    cannot be made either, what `describe` returns.
    """
    return full_traceback_of(error) or _plain_traceback(error)


def full_traceback_of(error: BaseException) -> str | None:
    """Return the traceback of an exception, as the interpreter prints it; None if it cannot be made."""

    def full() -> str:
        return "".join(traceback.format_exception(error)) if _is_bounded(error) else ""

    return _attempt(full) or None


def shown(value: object) -> str:
    """Return the `repr` of a value. It never fails."""
    return _attempt(lambda: f"{value!r}") or f"a value of type {_name(value)} (it cannot be shown)"


def _attempt(make: Callable[[], str]) -> str | None:
    """Return a text, or None if the code that makes it raises: it is that of the user's classes."""
    try:
        return make()
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - also SystemExit: a text must not end the process
        return None


def _name(value: object) -> str:
    # A metaclass may replace `__name__`: this asks `type` itself.
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name


def _plain_traceback(error: BaseException) -> str:
    def frames() -> str:
        # The base class's attribute: that of a subclass may be anything.
        own = BaseException.__dict__["__traceback__"].__get__(error)
        return "Traceback (most recent call last):\n" + "".join(traceback.format_tb(own)) if own else ""

    def notes() -> str:
        return "".join(f"{note}\n" for note in object.__getattribute__(error, "__dict__")["__notes__"])

    return f"{_attempt(frames) or ''}{describe(error)}\n{_attempt(notes) or ''}"


def _is_bounded(error: BaseException) -> bool:
    """Return whether the causes and contexts of an exception end; a property may make new ones for ever."""
    seen: dict[int, object] = {}
    left: list[object] = [error]
    while left and len(seen) <= MAX_CHAIN:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen[id(one)] = one
            left += [getattr(one, "__cause__", None), getattr(one, "__context__", None)]
    return not left
