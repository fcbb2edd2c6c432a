"""What one worker process is told, in a form that can be handed to another process."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal, Self

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

#: What a process ends with, besides what `Worker.serve` returns: 0, 3 and 4.
STOPPED, CRASHED, MISCONFIGURED, CUT_OFF, UNHEALTHY = range(5)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of one worker process; None is "as the program says".

    Attributes:
        target: Where the worker is: `module:name` or `path/to/file.py:name`.
        concurrency: How many runs at once.
        grace: How long runs may go on after a stop, in seconds.
        exit_on_unhealthy: Stop after so many seconds of bad health; None: never.
        log_format: Lines for people, or for programs.
        log_level: What is logged at least.
    """

    target: str
    concurrency: int | None = None
    grace: float | None = None
    exit_on_unhealthy: float | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"

    def dump(self) -> str:
        """As text, for the command line of a child."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def load(cls, text: str) -> Self:
        """What `dump` wrote."""
        return cls(**json.loads(text))
