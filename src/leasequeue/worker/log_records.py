"""Log records below runs: each carries the fields of its run, and is kept if the run keeps its logs.

So that the set-up of an application stays as it is, the step of each logger between its filters and the
handlers is wrapped. A handler of the root logger would silence `logging.basicConfig` and the last resort,
would be removed by `dictConfig`, and would miss loggers that do not propagate. A record factory is called
before the filters, which may redact a text, and its attributes would make `extra` with the same names fail.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from leasequeue.worker.stage_context import correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leasequeue.queue.run_logs import RunLogs


class LoggingRun(Protocol):
    """What is known of a run where it logs."""

    @property
    def record_fields(self) -> Mapping[str, object]:
        """The attributes of its records."""
        ...

    @property
    def logs(self) -> RunLogs | None:
        """What keeps its records; None: nothing does."""
        ...


class RunElsewhere(NamedTuple):
    """What the process of a handler knows of its run."""

    record_fields: Mapping[str, object]
    logs: RunLogs | None


@functools.cache
def watch_records(present_run: Callable[[], LoggingRun | None]) -> None:
    """Let each log record below a run have the fields of the run, from the first worker of a process on."""
    call_handlers = logging.Logger.callHandlers

    def with_run(self: logging.Logger, record: logging.LogRecord) -> None:
        run = present_run()
        if run is None:
            call_handlers(self, record)
            return
        for name, value in run.record_fields.items():
            vars(record).setdefault(name, value)  # what the caller has given as `extra` stays
        if (correlation := correlation_id.get()) is not None:
            vars(record).setdefault("correlation", correlation)
        try:
            call_handlers(self, record)
        finally:
            # Not our own: a call of one run may share the trip with those of others.
            if run.logs is not None and not record.name.startswith("leasequeue."):
                run.logs.add(record)

    logging.Logger.callHandlers = with_run  # type: ignore[method-assign] # as the module says
