"""One worker process, from the import of the user's module to the exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from leasehold.cli.worker.logs import set_up_logs
from leasehold.cli.worker.settings import CRASHED, MISCONFIGURED, STOPPED
from leasehold.cli.worker.target import Unusable, find_worker
from leasehold.durations import check_int, seconds
from leasehold.errors import InvalidArgument
from leasehold.log import Log
from leasehold.worker.signals import end_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from leasehold.cli.worker.settings import Settings
    from leasehold.worker import Worker

#: When all is done, how long what the user's code has left behind may keep the process (s).
FAREWELL_SECONDS = 3.0

log = Log("leasehold.worker")


def work(settings: Settings, ready: Callable[[Worker], None] = lambda _: None) -> int:
    """Run a worker until it is stopped. To be called in the main thread, as the last thing of a process.

    Some seconds after its end the process ends too, should a thread or a task of the user's go on.

    Args:
        settings: What to run, and how.
        ready: Called when the worker has been found, before it begins.

    Returns:
        The code for the process to exit with.
    """
    set_up_logs(settings.log_format, settings.log_level)
    state = _State()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, state.on_signal)
    try:
        worker = prepared(settings)
    except Unusable as error:
        log.error("%s", error)  # noqa: TRY400 - the text has the part of the traceback that is the user's
        return MISCONFIGURED
    ready(worker)
    try:
        return asyncio.run(_serve(worker, settings, state))
    except InvalidArgument as error:
        log.error("%s", error)  # noqa: TRY400 - it says which argument, and what to write
        state.code = MISCONFIGURED
    except Exception:
        log.critical("the worker has failed", exc_info=True)
    return state.code


def prepared(settings: Settings) -> Worker:
    """Find the worker, and put what the command line says above what the program says.

    Raises:
        Unusable: If there is none, or a number is out of range.
    """
    worker = find_worker(settings.target)
    try:
        if settings.concurrency is not None:
            worker.concurrency = check_int("concurrency", settings.concurrency, minimum=1, maximum=10_000)
        if settings.grace is not None:
            worker.grace = seconds("grace", settings.grace, zero=True)
        if settings.exit_on_unhealthy is not None:
            seconds("exit-on-unhealthy", settings.exit_on_unhealthy, zero=False)
    except InvalidArgument as error:
        raise Unusable(str(error)) from error
    return worker


class _State:
    """How far the process is, and what it will exit with."""

    def __init__(self) -> None:
        self.over = False
        self.code = CRASHED

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Signals that come before the worker listens to them, or when it has ended."""
        if not self.over:
            sys.exit(STOPPED)  # nothing has begun

    def end(self) -> None:
        """End the process, if it has not ended by itself by then."""
        time.sleep(FAREWELL_SECONDS)
        log.warning("the program goes on after the worker's end, in a thread or a task: it ends here")
        end_process(self.code)


async def _serve(worker: Worker, settings: Settings, state: _State) -> int:
    try:
        state.code = await worker.serve(unhealthy_after=settings.exit_on_unhealthy)
    finally:
        state.over = True
        # From here on `asyncio.run` waits for the user's tasks, and the interpreter for the user's threads.
        threading.Thread(target=state.end, name="leasehold farewell", daemon=True).start()
    return state.code
