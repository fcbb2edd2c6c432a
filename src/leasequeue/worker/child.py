"""A process that runs handlers: it answers calls, one after the other, until its worker hangs up."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import inspect
import multiprocessing.spawn
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from leasequeue import telemetry
from leasequeue.errors import OTHER_PROCESS
from leasequeue.errors.describing import describe, traceback_of
from leasequeue.queue.run_logs import RunLogs
from leasequeue.worker.log_records import RunElsewhere, watch_records
from leasequeue.worker.outcomes import Signal
from leasequeue.worker.stage_context import CURRENT, correlation_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

#: A terminal and some supervisors signal the whole process group. The worker decides when a child ends.
IGNORED = (signal.SIGINT, signal.SIGTERM)
#: What a message with log records begins with. No pickled answer does, nor the first message, which is empty.
RECORDS = b"records "
#: How often they are sent (s).
SEND_SECONDS = 0.2
#: The option of prctl(2) to be sent a signal when the parent dies.
PR_SET_PDEATHSIG = 1
#: On other systems: how often to compare the parent's process id (s).
POLL_SECONDS = 0.5


def serve(connection: Connection) -> None:
    """Prepare this process, say that it is ready, and answer calls.

    The first message is a pickled tuple: the parent's process id, what `multiprocessing.spawn.prepare` takes,
    and the pickled functions of the handlers, whose modules are imported before the first call needs them.
    """
    _keep_apart(connection)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # the worker blocks them until they are ignored
    parent, preparation, functions = pickle.loads(connection.recv_bytes())  # noqa: S301 - by our own worker
    exit_with(parent)
    _prepare(preparation)
    for function in functions:
        try:
            pickle.loads(function)  # noqa: S301 - pickled by our own worker
        except BaseException:  # noqa: BLE001 - the module may raise anything; each run of it says so as well
            traceback.print_exc()
    records = _Records(connection)
    watch_records(lambda: records.run)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(b"")
        while True:
            answer = _answer(connection.recv_bytes(), records)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):  # it may be closed, or replaced
                    stream.flush()  # this process may be killed before it prints more
            records.end(answer)


class _Records:
    """Sends the log records of calls that keep them, while a call lasts and before its answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        #: The present run: this process has one at a time, whose threads it cannot tell from others.
        self.run: RunElsewhere | None = None
        self._sent = 0
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()  # the thread may have held it

    def begin(self, fields: Mapping[str, object], limit: int | None) -> None:
        """Let the records of this process have the fields of a run, and keep them if there is a limit."""
        self._sent = 0
        self.run = RunElsewhere(fields, None if limit is None else RunLogs(limit))
        if limit is not None and self._thread is None:
            self._thread = threading.Thread(target=self._send_often, name="leasequeue logs", daemon=True)
            self._thread.start()

    def end(self, answer: bytes) -> None:
        """Send the last records, and the answer."""
        with self._lock:
            self._send()
            self.run = None
            self._connection.send_bytes(answer)

    def _send_often(self) -> None:
        with contextlib.suppress(OSError):  # the worker has hung up
            while True:
                time.sleep(SEND_SECONDS)
                with self._lock:
                    self._send()

    def _send(self) -> None:
        logs = None if self.run is None else self.run.logs
        if logs is not None and (taken := logs.take()) is not None:
            first, lines = taken
            self._connection.send_bytes(RECORDS + b"\n".join([b"%d" % (first - 1 - self._sent), *lines]))
            self._sent = first - 1 + len(lines)
            logs.done()


def _keep_apart(connection: Connection) -> None:
    """Let what functions start have neither the connection nor the signals that this process ignores."""
    os.set_inheritable(connection.fileno(), False)
    # `SIG_IGN` would last in the programs that they start.
    handlers = {number: signal.signal(number, lambda *_: None) for number in IGNORED}
    for number in IGNORED:
        signal.siginterrupt(number, False)
    mask = threading.local()

    def before() -> None:
        mask.old = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)

    def after() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.old)

    def in_fork() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        after()  # one that has come just now ends it
        connection.close()  # if the function returns there, it answers no call

    os.register_at_fork(before=before, after_in_parent=after, after_in_child=in_fork)


def imports_main() -> bool:
    """Return whether this is such a process, which just imports the main module of its worker."""
    return _importing


_importing = False


def _prepare(preparation: dict[str, Any]) -> None:
    """Take over the parent's paths, and its main module under another name."""
    global _importing  # noqa: PLW0603 - the main module runs in between
    _importing = True
    try:
        multiprocessing.spawn.prepare(preparation)
    except BaseException:  # noqa: BLE001 - it may raise anything; functions of other modules can be called
        traceback.print_exc()
    finally:
        _importing = False


def _answer(request: bytes, records: _Records) -> bytes:
    """Call a function; return, pickled, its value and None, or None and the pickled error that it raised."""
    try:
        function, payload, names, around = pickle.loads(request)  # noqa: S301 - see above
        trace, stage, correlation, about = around
        if about is not None:
            records.begin(*about)
        CURRENT.set(stage)  # the process sets it again for each call
        correlation_id.set(correlation)
        with telemetry.continued(trace):
            return pickle.dumps((call_plain(function, *payload, **names), None))
    except BaseException as error:  # noqa: BLE001 - raised again in the worker
        return pickle.dumps((None, _pickled(error)))


def call_plain(function: Callable[..., Any], /, *payload: Any, **names: Any) -> Any:
    """Call a function. Convert exceptions that have a meaning for the event loop or for generators."""
    try:
        value = function(*payload, **names)
    except (StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}") from error
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError(
            f"the handler returned {type(value).__name__}, which is not awaited: make it an async function"
        )
    return value


def _pickled(error: BaseException) -> bytes:
    """Pickle an exception, or a substitute for one that cannot be pickled, with its traceback as a note."""
    note = None if isinstance(error, Signal) else f"{OTHER_PROCESS}{traceback_of(error)}"
    try:
        error.__cause__ = error.__context__ = None
        if note is not None:
            error.add_note(note)
        pickled = pickle.dumps(error)
        # What a user's `__reduce__` makes of it may be no exception, which then has no such method.
        pickle.loads(pickled).with_traceback(None)  # noqa: S301 - pickled in the line above
    except BaseException as problem:  # noqa: BLE001 - any error of a user's class
        substitute = RuntimeError(describe(error))
        substitute.add_note(note or f"It cannot be sent to the worker: {describe(problem)}")
        return pickle.dumps(substitute)
    return pickled


@functools.cache
def exit_with(parent: int) -> None:
    """Exit this process when its parent has died, whatever it is doing. Calls after the first do nothing.

    A handler may keep its process busy for hours without reading a pipe, so that closing one would not end
    it. `parent` is its process id, as the parent passed it: it may have died before this call.
    """
    if not _signal_on_death():
        threading.Thread(target=_poll, args=(parent,), name="leasequeue parent watch", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _signal_on_death() -> bool:
    if sys.platform != "linux":
        return False
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
        return bool(ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    return False


def _poll(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
