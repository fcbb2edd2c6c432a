"""Log lines, for people or for programs."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.cli.worker.settings import LogFormat, LogLevel

#: What every record has; all else was given by the line's author.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}

#: What these say below a level concerns their own authors: event loop, Redis client, watcher of files.
_TALKATIVE = {"asyncio": logging.INFO, "push_response": logging.INFO, "watchfiles": logging.WARNING}

_TEXT = "%(asctime)s.%(msecs)03d %(levelname)-8s %(process)d %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, process, message, and what the line has besides.

    An exception is in `traceback`. What JSON cannot say is written as Python shows it.
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
        line.update((name, value) for name, value in vars(record).items() if name not in _USUAL)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=repr, ensure_ascii=False)


def set_up_logs(form: LogFormat, level: LogLevel) -> None:
    """Write what is logged, by us and by the user's code, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT, "%Y-%m-%d %H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _TALKATIVE.items():
        logging.getLogger(name).setLevel(max(least, root.level))
    logging.captureWarnings(capture=True)
