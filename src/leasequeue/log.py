"""A logger that never raises, so that a broken log handler does not stop a worker."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

from leasequeue.describing import full_traceback_of, traceback_of

if TYPE_CHECKING:
    from collections.abc import MutableMapping


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that never raises, whatever handlers and formatters an application has set.

    Handlers of the standard library catch their errors; not all others do. An exception whose traceback
    cannot be formatted is logged as text, since no handler could format it.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

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
        given = kwargs.get("exc_info")
        error = given if isinstance(given, BaseException) else sys.exc_info()[1] if given else None
        if error is not None and full_traceback_of(error) is None:
            msg, args, kwargs["exc_info"] = f"{msg}\n%s", (*args, traceback_of(error)), None
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
