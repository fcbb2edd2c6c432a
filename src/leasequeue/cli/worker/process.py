"""A worker process, from the import of the user's module to the exit code; and a check of it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from leasequeue.cli.formatting import print_error, print_line, print_rows
from leasequeue.cli.server import Code, explain, fail
from leasequeue.cli.worker.settings import CRASHED, MISCONFIGURED, REFUSED, STOPPED, set_up_logs
from leasequeue.cli.worker.target import Unusable, find_worker, with_traceback
from leasequeue.durations import check_int, seconds
from leasequeue.errors import (
    ConnectionLost,
    InvalidArgument,
    LeasequeueError,
    ServerError,
    ServerRefused,
    ServerTooOld,
)
from leasequeue.errors.log import Lines, Log
from leasequeue.queue.queue import engine_of
from leasequeue.worker.processes import usable_cores
from leasequeue.worker.signals import end_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from leasequeue.cli.worker.health import HealthPort
    from leasequeue.cli.worker.settings import WorkerSettings
    from leasequeue.queue.views import Counts
    from leasequeue.worker import Handler, Worker


#: Seconds that threads and tasks of the user's code may keep the process after the worker has ended.
EXIT_SECONDS = 3.0

log = Log("leasequeue.worker")


def work(settings: WorkerSettings, ready: Callable[[Worker, HealthPort | None], None] | None = None) -> int:
    """Run a worker until it is stopped. Call it in the main thread, as the last call of a process.

    `EXIT_SECONDS` after the worker has ended, the process ends although a thread or a task of the user's
    code still runs. In a process that may replace another, `ready` is called with the worker, and where it
    answers probes, before it starts.
    """
    set_up_logs(settings.log_format, settings.log_level)
    state = _State()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, state.on_signal)
    try:
        port = _health_port(settings, waits=ready is not None)
        worker = prepare(settings)
    except Unusable as error:
        log.error("%s", Lines(str(error)))  # noqa: TRY400 - it has the user's part of the traceback
        return MISCONFIGURED
    if port is not None:
        port.serve(worker)
    if ready is not None:
        ready(worker, port)
    try:
        return asyncio.run(_serve(worker, settings, state))
    except Exception as error:
        if error is worker.lifespan_error:
            log.critical("%s", Lines(with_traceback("the lifespan has failed", error)))
        elif isinstance(error, InvalidArgument):
            log.error("%s", error)  # noqa: TRY400 - the text says all
            state.code = MISCONFIGURED
        elif isinstance(error, (ServerRefused, ServerTooOld)):
            log.error("the worker cannot start: %s", error)  # noqa: TRY400 - as above
            state.code = REFUSED
        else:
            log.critical("the worker has failed", exc_info=True)
    return state.code


def prepare(settings: WorkerSettings) -> Worker:
    """Import the worker, and apply the options of the command line to it."""
    worker = find_worker(settings.target)
    try:
        if settings.name is not None:
            worker.name = settings.name
        if settings.concurrency is not None:
            worker.concurrency = check_int("concurrency", settings.concurrency, minimum=1, maximum=10_000)
        if settings.handler_processes is not None:
            worker.handler_processes = settings.handler_processes
        elif worker.handler_processes is None and settings.processes > 1:
            worker.handler_processes = max(1, usable_cores() // settings.processes)
        if settings.grace is not None:
            worker.grace = seconds("grace", settings.grace, zero=True)
        worker.max_runs = settings.max_runs
        worker.log_runs = settings.log_runs
        if settings.exit_on_unhealthy is not None:
            seconds("exit-on-unhealthy", settings.exit_on_unhealthy, zero=False)
    except InvalidArgument as error:
        raise Unusable(str(error)) from error
    return worker


def _health_port(settings: WorkerSettings, *, waits: bool) -> HealthPort | None:
    if settings.health_port is None:
        return None
    from leasequeue.cli.probes import AddressUnusable  # with the server of the standard library
    from leasequeue.cli.worker.health import HealthPort

    port = HealthPort(settings.health_host, settings.health_port, waits=waits)
    try:
        port.start()
    except AddressUnusable as error:
        raise Unusable(str(error)) from error
    return port


class _State:
    """Whether the worker has ended, and the exit code of the process."""

    def __init__(self) -> None:
        self.ended = False
        self.code = CRASHED

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Handle signals that arrive before the worker has started, or after it has ended."""
        if not self.ended:
            sys.exit(STOPPED)  # no run has started

    def exit_after_limit(self) -> None:
        """End the process, if it has not ended by then."""
        time.sleep(EXIT_SECONDS)
        log.warning("a thread or a task still runs after the worker has ended: ending the process")
        end_process(self.code)


async def _serve(worker: Worker, settings: WorkerSettings, state: _State) -> int:
    try:
        state.code = await worker.serve(unhealthy_after=settings.exit_on_unhealthy)
    finally:
        state.ended = True
        # From now on `asyncio.run` waits for the user's tasks, and the interpreter for the user's threads.
        threading.Thread(target=state.exit_after_limit, name="leasequeue exit", daemon=True).start()
    return state.code


#: Seconds to wait for the server.
REPLY_SECONDS = 5.0


def check(settings: WorkerSettings) -> int:
    """Import the worker, ask the servers, and print its handlers and the counts of their queues.

    Nothing is leased. The lifespan is run only on demand: it may change something elsewhere.

    Returns:
        0 if the worker can run; 2 if it is not configured correctly; 1 if the lifespan fails; 5 if the server
        cannot be reached or refuses.
    """
    try:
        worker = prepare(settings)
        counts = asyncio.run(_check(worker, lifespan=settings.lifespan))
    except (Unusable, InvalidArgument) as error:
        print_error(str(error))
        return MISCONFIGURED
    except ServerError as error:
        return fail(explain(error), Code.SERVER)
    except LeasequeueError as error:
        print_error(str(error))
        return CRASHED
    except Exception as error:  # noqa: BLE001 - whatever the user's lifespan raises
        print_error(with_traceback("the lifespan fails", error))
        return CRASHED
    print_rows([*map(_row, _of_first_shards(worker), counts)], as_json=False)
    print_line(f"The worker can run: {worker.concurrency} runs at once, grace {worker.grace:g} s.")
    if worker.has_lifespan and not settings.lifespan:
        print_line("Its lifespan was not run: --check --lifespan does.")
    return STOPPED


async def _check(worker: Worker, *, lifespan: bool) -> list[Counts]:
    async with AsyncExitStack() as stack:
        for handler in worker.handlers:
            stack.push_async_callback(handler.queue.close)
        try:
            async with asyncio.timeout(REPLY_SECONDS):
                for handler in worker.handlers:
                    await engine_of(handler.queue).rights.expect_worker(handler.consumer.adds_to)
                counts = [await handler.queue.whole.counts() for handler in _of_first_shards(worker)]
        except TimeoutError:
            raise ConnectionLost("the server does not answer", maybe_applied=False) from None
        if lifespan or not worker.has_lifespan:
            await worker.check()
        return counts


def _of_first_shards(worker: Worker) -> list[Handler]:
    """Return each handler once: there is one for each shard of its queue."""
    return [handler for handler in worker.handlers if handler.queue is handler.queue.whole.shards[0]]


def _row(handler: Handler, counts: Counts) -> dict[str, object]:
    return {
        "queue": handler.queue.whole.name,
        "handler": handler.name,
        "runs in": handler.run_in,
        "batch": handler.batch,
        "lease": f"{handler.lease_time:g} s",
        "limit": None if handler.timeout is None else f"{handler.timeout:g} s",
        "attempts": handler.retry.attempts,
        **counts._asdict(),
    }
