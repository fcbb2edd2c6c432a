"""Processes under supervision: starting, finding, stopping and killing them, and when to start the next one.

`leasequeue worker --processes` and the autoscaler's back end of processes share it. They differ in when the
next process starts: the former starts it after the pause, the latter in its next pass, if it still leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: The first and the longest pause before the next process is started after one that has ended (s).
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
#: After a process that ran for so long, the pause is the first one again (s).
LONG_LIFE = 30.0
#: The place of the start time in /proc/<pid>/stat, after the name of the program.
_START_FIELD = 19
#: The flag of pidfd_send_signal(2) for the process group of a process.
_PROCESS_GROUP = 1 << 2


class Restarts:
    """How long to wait before the next start: longer with each process of a row that has ended soon.

    Attributes:
        count: How many have ended in a row; 0: none has, or a later one has lived for `LONG_LIFE`.
        pause: How long after the last end the next process may be started (s).
    """

    def __init__(self) -> None:
        self.count = 0
        self.pause = 0.0
        self._since = self._next_start = 0.0

    def ended(self, lived: float, *, pause: bool = True) -> float:
        """Note that a process has ended that lived so long; return the pause before the next start (s).

        After the first one of a row there is a pause only if `pause` is set.
        """
        now = time.monotonic()
        if lived > LONG_LIFE:
            self.count = 0
        if self.count == 0:
            self._since = now
        grown = min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** min(self.count, 10))
        self.pause = grown if pause or self.count else 0.0
        self.count += 1
        self._next_start = now + self.pause
        return self.pause

    def lives(self, began: float) -> None:
        """Note that a process runs that was started then; one that has lived for long ends the row."""
        if began > self._since and time.monotonic() - began >= LONG_LIFE:
            self.count = 0

    @property
    def waits(self) -> bool:
        """Whether no process may be started now."""
        return self.count > 0 and time.monotonic() < self._next_start


class SupervisedProcess:
    """A process that this one has started, or found.

    It keeps running when this process ends, unless it is stopped before; one of `asyncio` would be killed.

    Attributes:
        began: When it was started or found, by `time.monotonic()`.
        ended: When its end was noticed, by `time.monotonic()`; None: it runs.
        start: The start time, which a later process with the same id does not have; None: it is not known.
    """

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.began = time.monotonic()
        self.ended: float | None = None
        self.start = _start_of(pid)
        self._child = child
        self._end: Future[int] = Future()
        if child is not None:
            name = f"leasequeue process {pid}"
            threading.Thread(target=self._watch, args=(child,), name=name, daemon=True).start()

    @classmethod
    def run(
        cls,
        command: Sequence[str],
        *,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        session: bool = False,
    ) -> Self:
        """Start a process that leads a new process group, so that Ctrl-C does not reach it.

        Without an environment and a standard output it has those of this process. With `session` it leads a
        session, too, so that the end of a terminal does not end it. Raise OSError or ValueError if it cannot
        be started.
        """
        child = subprocess.Popen(  # noqa: S603 - the user names the program
            command,
            stdin=stdin,
            stdout=stdout,
            env=env,
            cwd=cwd,
            start_new_session=session,
            process_group=None if session else 0,
        )
        return cls(child.pid, child)

    @property
    def is_child(self) -> bool:
        """Whether this process has started it, so that its exit code becomes known."""
        return self._child is not None

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None: it runs, or was found."""
        return None if self._child is None else self._child.returncode

    def alive(self) -> bool:
        """Return whether it runs. If not, `ended` is set."""
        if self.ended is None and self._child is None and not _is(self.pid, self.start):
            self.ended = time.monotonic()
        return self.ended is None

    def lived(self) -> float:
        """Return for how long it has run (s)."""
        return (time.monotonic() if self.ended is None else self.ended) - self.began

    def how(self) -> str:
        """Return how it ended: with which exit code, or by which signal."""
        code = self.returncode
        if code is None:
            return "an unknown exit code"
        if code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    async def wait(self) -> int:
        """Wait until a process that was started here ends; return its exit code, negative for a signal."""
        return await asyncio.shield(asyncio.wrap_future(self._end))

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send it a signal, if it still runs; with `group`, send that to all of its process group, too.

        Neither a later process with its id gets it, nor a later group.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError), _held(self.pid) as held:
            known = self.is_child and self.alive() if self.start is None else _is(self.pid, self.start)
            if not known:
                return
            if group:
                with contextlib.suppress(OSError):  # it leads none
                    _signal_group(self.pid, held, number)
            if held is not None:
                signal.pidfd_send_signal(held, number)
            else:
                os.kill(self.pid, number)

    def kill(self, *, group: bool = False) -> None:
        """Kill it with SIGKILL, if it still runs.

        With `group`, kill all of its process group, too.
        """
        self.signal(signal.SIGKILL, group=group)

    async def kill_after(self, seconds: float, on_kill: Callable[[], None]) -> None:
        """Wait for its end; kill it after some seconds, and call `on_kill` before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        if self.returncode is None:
            on_kill()
            self.kill()

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Wait for the end in a thread, so that the process leaves no zombie."""
        code = child.wait()
        self.ended = time.monotonic()
        self._end.set_result(code)


def _start_of(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None: the system does not say."""
    fields = _stat(pid)
    return None if fields is None else int(fields[_START_FIELD])


@contextlib.contextmanager
def _held(pid: int) -> Iterator[int | None]:
    """Give a descriptor of a process, which never becomes that of a later one; None: the system has none."""
    try:
        held = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on Linux, or forbidden in a container, or it has ended
        yield None
        return
    try:
        yield held
    finally:
        os.close(held)


def _signal_group(pid: int, held: int | None, number: signal.Signals) -> None:
    """Send a signal to the process group that a process leads, which runs."""
    try:
        if held is not None:
            signal.pidfd_send_signal(held, number, None, _PROCESS_GROUP)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        held = None  # Linux before 6.9 cannot
    if held is None:
        os.killpg(pid, number)  # the id of a group whose leader runs is that of no other


def _is(pid: int, start: int | None) -> bool:
    """Return whether a process runs, and began when it should have."""
    try:
        os.kill(pid, 0)
    except OSError:  # it has ended, or is of another user by now
        return False
    if start is None:
        return True
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z" and int(fields[_START_FIELD]) == start


def _stat(pid: int) -> list[str] | None:
    """Return what the system says of a process after the name of its program; None: nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
