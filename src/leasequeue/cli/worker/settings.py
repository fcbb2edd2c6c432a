"""The options of a worker process, in a form that can be passed to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)

#: The exit codes of a process. `Worker.serve` returns 0, 3 and 4.
STOPPED, CRASHED, MISCONFIGURED, CUT_OFF, UNHEALTHY, REFUSED = range(6)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a worker process; None means "as the program says".

    Attributes:
        target: The worker: `module:name` or `path/to/file.py:name`.
        name: The worker's name.
        concurrency: How many runs at once.
        processes: How many worker processes share the machine.
        handler_processes: How many processes run handlers, in each of them.
        grace: How long to wait for runs when the worker stops, in seconds.
        exit_on_unhealthy: After how many seconds of bad health the worker stops; None: never.
        max_runs: After how many runs the process is replaced; None: never.
        max_memory: From how many bytes of memory on the process is replaced; None: never.
        health_port: The port of `/live`, `/ready` and `/metrics`; None: none.
        health_host: The address at which it listens.
        log_runs: Whether each completed run is a line of the log.
        log_format: The format of log lines.
        log_level: The lowest level that is logged.
        lifespan: Whether a check runs the lifespan.
    """

    target: str
    name: str | None = None
    concurrency: int | None = None
    processes: int = 1
    handler_processes: int | None = None
    grace: float | None = None
    exit_on_unhealthy: float | None = None
    max_runs: int | None = None
    max_memory: int | None = None
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log_runs: bool = False
    log_format: LogFormat = "text"
    log_level: LogLevel = "info"
    lifespan: bool = False
