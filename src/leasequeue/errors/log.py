"""A logger that never raises, and whose lines cannot be forged: see `leasequeue.errors.describing`."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from leasequeue.errors.describing import (
    TEXT_LENGTH,
    TRACEBACK_LENGTH,
    full_traceback_of,
    indented,
    plain,
    traceback_of,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class Lines:
    """An argument of a log line that is meant to have several lines, such as a traceback."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return indented(self._text, TRACEBACK_LENGTH)


class _Plain:
    """Any other argument that is no number: its text is one line, made when a handler formats it."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return plain(f"{self._value}", TEXT_LENGTH)

    def __repr__(self) -> str:
        return plain(f"{self._value!r}", TEXT_LENGTH)


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises, whatever handlers and formatters an application has set.

    Handlers of the standard library catch their errors; not all others do. An exception whose traceback
    cannot be formatted is logged as text, since no handler could format it.

    What the arguments, the `extra` and tracebacks hold may be texts of others, so they are escaped and cut.
    Messages are constants; a test checks it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))
        self.logger.addFilter(_write_traceback)

    def process(
        self, msg: object, kwargs: MutableMapping[str, Any]
    ) -> tuple[object, MutableMapping[str, Any]]:
        """Return the arguments unchanged, so that each line keeps its `extra`."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log one line; if that fails, print the error on stderr, as the standard library does."""
        if not self.isEnabledFor(level):
            return
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller's line, not this one
        args = tuple(one if issubclass(type(one), (int, float, Lines)) else _Plain(one) for one in args)
        if extra := kwargs.get("extra"):
            kwargs["extra"] = {name: _field(value) for name, value in extra.items()}
        given = kwargs.get("exc_info")
        error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
        if error is not None and full_traceback_of(error) is None:
            msg, args, kwargs["exc_info"] = f"{msg}\n%s", (*args, Lines(traceback_of(error))), None
        elif isinstance(
            given, BaseException
        ):  # the standard library would ask for its truth, which may raise
            kwargs["exc_info"] = (type(given), given, given.__traceback__)
        try:
            super().log(level, msg, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # noqa: BLE001 - any handler of any application, any text of an error
            if logging.raiseExceptions and sys.stderr is not None:
                sys.stderr.write(traceback_of(problem))


def _field(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [*map(_field, value)]
    return plain(value, TEXT_LENGTH) if isinstance(value, str) else value


def _write_traceback(record: logging.LogRecord) -> bool:
    """Write the traceback of a record, which handlers of the standard library then take as it is."""
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = indented(traceback_of(record.exc_info[1]).rstrip("\n"), TRACEBACK_LENGTH)
    return True
