"""The options of a worker process, its exit codes, and its log lines."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

#: The exit codes of a process. `Worker.serve` returns 0, 3 and 4.
STOPPED, CRASHED, MISCONFIGURED, CUT_OFF, UNHEALTHY, REFUSED = range(6)


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The options of a worker process, as its command has them; None: as the program says, or never."""

    #: The worker: `module:name` or `path/to/file.py:name`.
    target: str
    name: str | None = None
    concurrency: int | None = None
    #: How many worker processes share the machine, and how many processes run handlers, in each of them.
    processes: int = 1
    handler_processes: int | None = None
    #: Seconds.
    grace: float | None = None
    exit_on_unhealthy: float | None = None
    #: After how many runs, and from how many bytes of memory on, the process is replaced.
    max_runs: int | None = None
    max_memory: int | None = None
    #: Where it answers `/live`, `/ready` and `/metrics`.
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log_runs: bool = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    #: Whether a check runs the lifespan.
    lifespan: bool = False


#: The attributes of every record. Others were added by the caller.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

#: Loggers of libraries, and the lowest level of theirs that is logged.
_MINIMUM_LEVELS = {"asyncio": logging.INFO, "push_response": logging.INFO, "watchfiles": logging.WARNING}

_TEXT = "%(asctime)s.%(msecs)03d %(levelname)-8s %(process)d %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """Format a record as a JSON object: time, level, logger, process, message and the added attributes.

    An exception is in `traceback`. A value that JSON does not know is written as its `repr`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        time = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        line.update((name, value) for name, value in vars(record).items() if name not in _STANDARD)
        if record.exc_info:
            line["traceback"] = record.exc_text or self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=repr)  # in ASCII: also control characters above it act on terminals


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """Write all log records, those of the user's code included, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, minimum in _MINIMUM_LEVELS.items():
        logging.getLogger(name).setLevel(max(minimum, root.level))
    logging.captureWarnings(capture=True)
