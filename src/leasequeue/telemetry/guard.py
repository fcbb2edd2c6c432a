"""Keep what the SDK raises, for example a sampler of the user, away from calls and runs: log it."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from leasequeue.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

#: How often an error at one place is logged (s).
LOG_EVERY = 60.0

log = Log("leasequeue.telemetry")
_logged: dict[str, float] = {}


def guarded(function: Callable[P, T]) -> Callable[P, T | None]:
    """Log what a function raises, and return None: an item must not fail because its trace does."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return function(*args, **kwargs)
        except Exception:
            now, name = time.monotonic(), function.__qualname__
            if now - _logged.get(name, -LOG_EVERY) >= LOG_EVERY:
                _logged[name] = now
                log.exception("OpenTelemetry raised an error; something was not recorded")
            return None

    return call
