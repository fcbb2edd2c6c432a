"""Texts of exceptions and values, also of those whose methods raise errors; and texts of others as shown.

Whoever can write to a server chooses ids, names and errors. Shown as they are, a line break would forge a
line of a log, an escape code would reach the terminal, and a mebibyte would be one line. So what is shown
passes here: of log lines in `leasequeue.errors.log`, of errors in `LeasequeueError`, of commands in
`leasequeue.cli.formatting`, of metrics and traces where their attributes are made.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: How many characters are shown: of a name or an id, of a text such as an error, and of a traceback.
NAME_LENGTH, TEXT_LENGTH, TRACEBACK_LENGTH = 200, 4_000, 16_000


def plain(text: str, longest: int | None = NAME_LENGTH) -> str:
    """Return a text of others as a part of one line, which can be encoded; its beginning if it is longer.

    Line breaks, escape codes, marks that change the direction, and what is no UTF-8 become escapes. `longest`
    is the maximum of characters, without the escapes; None: it is not cut.
    """
    begin = text if longest is None else text[:longest]
    if not begin.isprintable():
        begin = "".join(
            letter if letter.isprintable() or letter == "\t" else letter.encode("unicode_escape").decode()
            for letter in begin
        )
    return begin if longest is None or len(text) <= longest else f"{begin}… ({len(text):,} characters)"


def indented(text: str, longest: int = TEXT_LENGTH, indent: str = "  ") -> str:
    """Return a text of several lines, with each further line indented: it looks like no line of a log.

    What `plain` escapes is escaped in each line. Of a longer text, the middle is left out.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}… ({len(text):,} characters) …{text[-half:]}"
    if text.isprintable():
        return text
    first, *others = (plain(line, None) for line in text.split("\n"))
    return "\n".join([first, *(line and f"{indent}{line}" for line in others)])


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
