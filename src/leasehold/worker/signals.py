"""Sees a worker's process to its end, from a thread: signals, health, and a time by which all is over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self

from leasehold.log import Log

if TYPE_CHECKING:
    from types import FrameType

    from leasehold.worker.health import Health
    from leasehold.worker.runtime import WorkerRuntime

#: What a process ends with.
STOPPED, CUT_OFF, UNHEALTHY = 0, 3, 4
#: After the grace time, an event loop counts as blocked when it has shown no life for so long (s).
BLOCKED_SECONDS = 3.0
#: So long after the grace time the process ends, whatever is still under way (s).
LAST_SECONDS = 10.0
#: How long giving back may take at the very end (s).
RELEASE_SECONDS = 3.0
#: How often to look: at the health, and at the clock while the worker stops (s).
TICK = 0.2
#: Of three signals, the first stops the worker, the second cuts its runs off, the third ends the process.
HURRY, END = 2, 3

SIGNALS = (signal.SIGTERM, signal.SIGINT)

log = Log("leasehold.worker")


class Watched(Protocol):
    """A worker, as far as the signal handler needs one."""

    @property
    def grace(self) -> float:
        """How long runs may go on after a stop, in seconds."""

    @property
    def runtime(self) -> WorkerRuntime | None:
        """What it does now."""

    def stop(self, *, now: bool = False) -> None:
        """Stop it; callable from any thread and more than once."""

    def health(self) -> Health:
        """How it is doing; callable from any thread."""


class SignalHandler:
    """Stops a worker on signals, and when it has been unhealthy for too long; a context manager.

    It is a thread, since the event loop may be blocked by a handler. It hears of signals through a socket
    that the interpreter writes to by itself, since a handler may be inside of a library, where no Python code
    runs in the main thread. Logging is done here as well: in a signal handler it might wait for itself.

    Args:
        worker: What to watch.
        unhealthy_after: For how many seconds it may be unhealthy; None: for ever.

    Attributes:
        unhealthy: Whether the worker was stopped because it was unhealthy.
    """

    def __init__(self, worker: Watched, *, unhealthy_after: float | None) -> None:
        self._worker = worker
        self._unhealthy_after = unhealthy_after
        self.unhealthy = False
        self._ours, self._theirs = socket.socketpair()
        self._theirs.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="leasehold signals", daemon=True)
        self._over = False
        #: Signals, as counted by the interpreter's socket and by our handler. Each may miss some: the first
        #: if somebody else takes the socket over, the second while no Python code runs.
        self._announced = 0
        self._handled = 0
        self._obeyed = 0
        self._cut_at: float | None = None
        self._red_since: float | None = None

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        self._wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        current = signal.set_wakeup_fd(self._wakeup)
        if current not in (self._theirs.fileno(), -1):
            signal.set_wakeup_fd(current)  # it was taken over meanwhile, and is not ours to give back
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._poke()
        self._thread.join()
        self._ours.close()
        self._theirs.close()

    def stopping(self, *, now: bool) -> None:
        """The worker was told to stop: from now on its time is limited."""
        cut_at = time.monotonic() + (0.0 if now else self._worker.grace)
        if self._cut_at is None or cut_at < self._cut_at:
            self._cut_at = cut_at
            self._poke()

    # -------------------------------------------------------------------------- inside

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._handled += 1
        self._poke()

    def _poke(self) -> None:
        with contextlib.suppress(OSError):  # full, so it is awake; or closed, so it is over
            self._theirs.send(b"\0")

    def _watch(self) -> None:
        while not self._over:
            restless = self._cut_at is not None or self._unhealthy_after is not None
            self._ours.settimeout(TICK if restless else None)
            try:
                heard = self._ours.recv(256)
            except TimeoutError:
                heard = b""
            self._announced += sum(number in SIGNALS for number in heard)
            self._pass_on(heard)
            try:
                self._look_round()
            except Exception:
                log.exception("the signal handler of the worker failed, and goes on")

    def _look_round(self) -> None:
        if self._over:
            return
        self._obey()
        self._look_at_health()
        self._look_at_the_clock()

    def _pass_on(self, heard: bytes) -> None:
        """Somebody else may have asked to be told of signals before us."""
        others = bytes(number for number in heard if number and number not in SIGNALS)
        if others and self._wakeup != -1:
            with contextlib.suppress(OSError):
                os.write(self._wakeup, others)

    def _obey(self) -> None:
        count = max(self._announced, self._handled)
        news, self._obeyed = count > self._obeyed, count
        if news and count >= END:
            self._end_process("the third signal")  # and never comes back
        if count:
            # Again and again: the first time, it may not have begun to run.
            self._worker.stop(now=count >= HURRY)
        if news and count >= HURRY:
            log.warning("got a second signal: cutting off what runs")
        elif news:
            log.info("got a signal to stop: runs may go on for %g s", self._worker.grace)

    def _look_at_health(self) -> None:
        if self._unhealthy_after is None or self._cut_at is not None or self._worker.runtime is None:
            return  # a lifespan takes as long as it takes
        health = self._worker.health()
        now = time.monotonic()
        if health.ok:
            self._red_since = None
            return
        if self._red_since is None:
            self._red_since = now
            log.warning("unhealthy: %s", "; ".join(health.reasons))
        elif now - self._red_since >= self._unhealthy_after:
            self.unhealthy = True
            reasons = "; ".join(health.reasons)
            log.error("stopping: unhealthy for %.0f s: %s", now - self._red_since, reasons)
            self._worker.stop()

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._cut_at is None or now < self._cut_at:
            return
        runtime = self._worker.runtime
        if runtime is not None and runtime.monitor.blocked_for() >= BLOCKED_SECONDS:
            self._end_process("the event loop is blocked")
        elif now >= self._cut_at + LAST_SECONDS:
            self._end_process("the worker does not come to its end")

    def _end_process(self, why: str) -> None:
        """Give everything back from here and end the process, whatever its other threads do."""
        code = UNHEALTHY if self.unhealthy else CUT_OFF
        # Should even that get stuck, as in a log that nobody reads.
        threading.Thread(target=_exit_after, args=(2 * RELEASE_SECONDS, code), daemon=True).start()
        runtime = self._worker.runtime
        held = 0 if runtime is None else len(runtime.renewer.held)
        log.error("%s: giving %d runs back and ending the process", why, held)
        if runtime is not None and held:
            try:
                runtime.background.call(runtime.renewer.release_all).result(RELEASE_SECONDS)
            except Exception as error:  # noqa: BLE001 - nothing more can be done about it
                log.error("they come back when their leases end, as the server is away: %r", error)  # noqa: TRY400
        end_process(code)


def end_process(code: int) -> None:
    """End the process now, without waiting for any thread; what was written is flushed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _exit_after(seconds: float, code: int) -> None:
    time.sleep(seconds)
    os._exit(code)
