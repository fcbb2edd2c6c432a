"""End a worker's process in time, from a thread: on signals, when unhealthy, and after a time limit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from leasequeue.errors.log import Log

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from leasequeue.worker.health import Health
    from leasequeue.worker.runtime import WorkerRuntime

#: The exit codes of the process.
STOPPED, INTERRUPTED, UNHEALTHY = 0, 3, 4
#: After the grace time, the process ends if the event loop has missed its heartbeats for so long (s).
BLOCKED_SECONDS = 3.0
#: So long after the grace time the process ends in any case (s).
LAST_SECONDS = 10.0
#: How long releasing the items may take when the process is ended from this thread (s).
RELEASE_SECONDS = 3.0
#: How often to check the health, and the time limit while the worker stops (s).
TICK = 0.2
#: The first signal stops the worker, the second interrupts its runs, the third ends the process.
HURRY, END = 2, 3

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = Log("leasequeue.worker")


class SignalHandler:
    """Stops a worker on signals, and when it has been unhealthy for too long; a context manager.

    It runs in a thread, since a handler may block the event loop, and reads signals from a socket that the
    interpreter writes to, since Python's signal handlers do not run while the main thread is inside a C
    library. It also logs in that thread: a signal handler that logs may wait for a lock of the code that it
    interrupted.

    Attributes:
        unhealthy: Whether the worker was stopped because it was unhealthy.
    """

    def __init__(
        self,
        stop: Callable[..., None],
        health: Callable[[], Health],
        *,
        grace: float,
        unhealthy_after: float | None,
    ) -> None:
        self._stop = stop
        self._health = health
        self._grace = grace
        self._unhealthy_after = unhealthy_after
        self.runtime: WorkerRuntime | None = None
        self.unhealthy = False
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="leasequeue signals", daemon=True)
        self._closed = False
        #: How many signals arrived through the socket and through our handler. Each may miss some: the socket
        #: if another library replaces it, the handler while no Python code runs.
        self._received = 0
        self._handled = 0
        self._obeyed = 0
        self._interrupt_at: float | None = None
        self._unhealthy_since: float | None = None

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        current = signal.set_wakeup_fd(self._wakeup)
        if current not in (self._theirs.fileno(), -1):
            signal.set_wakeup_fd(current)  # another library has replaced ours: leave it
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._wake()
        self._thread.join()
        self._ours.close()
        self._theirs.close()

    def stopping(self, *, now: bool) -> None:
        """Start the time limit: the worker is stopping."""
        interrupt_at = time.monotonic() + (0.0 if now else self._grace)
        if self._interrupt_at is None or interrupt_at < self._interrupt_at:
            self._interrupt_at = interrupt_at
            self._wake()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._handled += 1
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so the thread is awake; or closed
            self._theirs.send(b"\0")

    def _watch(self) -> None:
        while True:
            ticking = self._interrupt_at is not None or self._unhealthy_after is not None
            self._ours.settimeout(TICK if ticking else None)
            try:
                received = self._ours.recv(256)
            except TimeoutError:
                received = b""
            self._received += sum(number in SIGNALS for number in received)
            self._forward(received)
            if self._closed:
                return
            try:
                self._obey()
                self._check_health()
                self._check_time()
            except Exception:
                log.exception("a check in the signal thread failed; repeating it")

    def _forward(self, received: bytes) -> None:
        """Write the other signals to the socket that was set before ours."""
        others = bytes(number for number in received if number and number not in SIGNALS)
        if others and self._wakeup != -1:
            with contextlib.suppress(OSError):
                os.write(self._wakeup, others)

    def _obey(self) -> None:
        count = max(self._received, self._handled)
        new, self._obeyed = count > self._obeyed, count
        if new and count >= END:
            self._end_process("the third signal")  # does not return
        if count:
            # Each time, since the worker may not have been running the first time.
            self._stop(now=count >= HURRY)
        if new and count >= HURRY:
            log.warning("got a second signal: interrupting runs")
        elif new:
            log.info("got a signal to stop: runs have %g s to finish", self._grace)

    def _check_health(self) -> None:
        if self._unhealthy_after is None or self._interrupt_at is not None or self.runtime is None:
            return  # without a runtime, the lifespan is starting, which may take any time
        if self.runtime.retiring.is_set():
            return  # it leases nothing, and its runs may take any time
        health = self._health()
        now = time.monotonic()
        if health.works:  # another process could not do more
            self._unhealthy_since = None
            return
        if self._unhealthy_since is None:
            self._unhealthy_since = now
            log.warning("unhealthy: %s", "; ".join(health.reasons))
        elif now - self._unhealthy_since >= self._unhealthy_after:
            self.unhealthy = True
            reasons = "; ".join(health.reasons)
            log.error("stopping: unhealthy for %.0f s: %s", now - self._unhealthy_since, reasons)
            self._stop()

    def _check_time(self) -> None:
        now = time.monotonic()
        if self._interrupt_at is None or now < self._interrupt_at:
            return
        if self.runtime is not None and self.runtime.monitor.blocked_for() >= BLOCKED_SECONDS:
            self._end_process("the event loop is blocked")
        elif now >= self._interrupt_at + LAST_SECONDS:
            self._end_process("the worker has not stopped in time")

    def _end_process(self, why: str) -> None:
        """Release everything from this thread and end the process, whatever its other threads do."""
        code = UNHEALTHY if self.unhealthy else INTERRUPTED
        # In case this thread hangs as well, for example in a log handler.
        last_resort = threading.Timer(2 * RELEASE_SECONDS, os._exit, (code,))
        last_resort.daemon = True
        last_resort.start()
        runtime = self.runtime
        held = 0 if runtime is None else runtime.held
        log.error("%s: releasing %d runs and ending the process", why, held)
        if runtime is not None and held:
            try:
                runtime.release_from_any_thread(timeout=RELEASE_SECONDS)
            except Exception as error:  # noqa: BLE001 - there is nothing else to try
                log.error("not released, the items run again when their leases expire: %r", error)  # noqa: TRY400
        end_process(code)


def end_process(code: int) -> None:
    """End the process now, without waiting for threads. Standard output and error are flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)
