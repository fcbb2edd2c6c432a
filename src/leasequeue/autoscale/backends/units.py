"""The processes of units on this machine: starting, finding and signalling them, and how they end."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: The variable that marks the processes of a unit: the mark of its tier, and its name.
MARK = "LEASEQUEUE_UNIT"
#: How much of what a unit wrote last is quoted (characters).
QUOTED = 1000
#: The place of the start time in /proc/<pid>/stat, after the name of the program.
START_FIELD = 19


@dataclass(eq=False)
class Unit:
    """A unit on this machine. Its process leads a session of its own, with all that it starts.

    Attributes:
        name: What its worker is called.
        number: The number in its name.
        pid: The process id.
        began: When it was started or found, by `time.monotonic()`.
        start: What tells the process from a later one with the same id; None: the system does not say.
        child: The process, if this one has started it.
        captured: Where its standard error goes, if it is read when the unit has ended.
        ended: When its end was noticed, by `time.monotonic()`.
        was_ready: Whether it was seen at work.
        quieted: Whether it was told to fetch nothing more.
        told: When it was told that, or the contrary, by `time.monotonic()`.
        stopped: When it was told to stop, by `time.monotonic()`.
        signalled: Whether that was by a signal. A second one would interrupt its runs.
    """

    name: str
    number: int
    pid: int
    began: float
    start: int | None
    child: subprocess.Popen[bytes] | None = None
    captured: Any = None
    ended: float | None = None
    was_ready: bool = False
    quieted: bool = False
    told: float = -math.inf
    stopped: float | None = None
    signalled: bool = False
    _waiting: threading.Thread | None = field(default=None, repr=False)

    @property
    def leaving(self) -> bool:
        """Whether it was told to fetch nothing more, or to stop."""
        return self.quieted or self.stopped is not None

    def alive(self) -> bool:
        """Return whether the process runs. If not, `ended` is set."""
        if self.ended is None and self.child is None and not _is(self.pid, self.start):
            self.ended = time.monotonic()
        return self.ended is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it still runs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
            if self.child is not None:
                self.child.send_signal(number)
            elif self.alive():
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process, if it still runs, and what it has started in its process group.

        If it supervises the worker, the worker would run on, and no autoscaler would know it.
        """
        if self.alive():
            self.signal(signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing is left of it
                os.killpg(self.pid, signal.SIGKILL)

    def lived(self) -> float:
        """Return for how long it has run (s)."""
        return (time.monotonic() if self.ended is None else self.ended) - self.began

    def account(self, written: str) -> str:
        """Return how it ended, with what it wrote last."""
        text = f"the unit {self.name} ended after {self.lived():.1f} s with {self.how()}"
        return text + (written and f": {written}")

    def how(self) -> str:
        """Return how it ended."""
        if self.child is None:
            return "an unknown exit code"
        code = self.child.returncode
        if code >= 0:
            return f"exit code {code}"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"

    def last_words(self) -> str:
        """Return the end of its standard error, if that was captured, and forget it."""
        if self.captured is None:
            return ""
        with self.captured as file:
            self.captured = None
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4 * QUOTED))
            return str(file.read().decode(errors="replace").strip()[-QUOTED:])

    def watch(self) -> None:
        """Note when the process ends. A thread waits for it, so that it leaves no zombie."""
        self._waiting = threading.Thread(target=self._wait, name=f"leasequeue unit {self.name}", daemon=True)
        self._waiting.start()

    def _wait(self) -> None:
        if self.child is not None:
            self.child.wait()
        self.ended = time.monotonic()


def mark_of(url: str, prefix: str) -> str:
    """Return what marks the processes of a tier. Two servers may have autoscalers of the same name."""
    parts = urlsplit(url)
    place = f"{parts.netloc.rpartition('@')[2]}{parts.path}"
    return hashlib.sha256(f"{place}\0{prefix}".encode()).hexdigest()[:16]


def command_of(command: Sequence[str], name: str) -> list[str]:
    """Return the command of a unit: with its name, and run by the same Python if it is `leasequeue`."""
    if any("{name}" in one for one in command):
        command = [one.replace("{name}", name) for one in command]
    else:
        command = [*command, "--name", name]
    if command[0] == "leasequeue":  # the one that runs this, also if it is not on PATH
        command = [sys.executable, "-P", "-m", "leasequeue.cli", *command[1:]]
    return [*command]


def start_unit(
    name: str,
    number: int,
    command: Sequence[str],
    *,
    mark: str,
    environment: Mapping[str, str],
    directory: str | None,
    captured: bool,
) -> Unit:
    """Start a unit in a new session, so that no terminal and no signal to a group ends it.

    Its output goes to our standard error: our standard output may be JSON.

    Args:
        name: Its name.
        number: The number in it.
        command: The program and its arguments.
        mark: The mark of its tier.
        environment: Its environment, to which the mark is added.
        directory: Where it starts; None: here.
        captured: Whether its output goes to a file, of which `last_words` returns the end.

    Raises:
        OSError, ValueError: If it cannot be started.
    """
    file = tempfile.TemporaryFile() if captured else None  # noqa: SIM115 - `last_words` closes it
    try:
        child = subprocess.Popen(  # noqa: S603 - the configuration names the program
            command,
            stdin=subprocess.DEVNULL,
            stdout=2 if file is None else file,
            stderr=2 if file is None else file,
            cwd=directory,
            env={**environment, MARK: f"{mark}/{name}"},
            start_new_session=True,
        )
    except BaseException:
        if file is not None:
            file.close()
        raise
    unit = Unit(name, number, child.pid, time.monotonic(), _start_of(child.pid), child, file)
    unit.watch()
    return unit


def find_units(mark: str) -> Iterator[tuple[int, str]]:
    """Return the processes of this user that lead a session and bear a mark, and their names.

    Only Linux tells the environment of processes; elsewhere nothing is found.
    """
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        name = unit_name(pid, mark)
        if name is not None:
            yield pid, name


def unit_name(pid: int, mark: str | None) -> str | None:
    """Return the name of the unit that a process leads; None: it leads none, or the system does not say.

    Programs that a unit has started inherit the variable, and may lead a session, too: those are no units,
    as their arguments do not have the name.

    Args:
        pid: The process id.
        mark: The mark of the unit's tier; None: any.
    """
    try:
        return _name_of(pid, mark) if os.getsid(pid) == pid else None
    except OSError:  # it has ended
        return None


def _name_of(pid: int, mark: str | None) -> str | None:
    """Return the name of the unit of which a process of this user is a part, if its arguments have it."""
    place = Path(f"/proc/{pid}")
    try:
        if place.stat().st_uid != os.geteuid():
            return None
        variables = (place / "environ").read_bytes().split(b"\0")
        arguments = (place / "cmdline").read_bytes()
    except OSError:  # it has ended, or is of another user
        return None
    for one in variables:
        if one.startswith(MARK.encode() + b"="):
            found, _, name = one.decode(errors="replace").removeprefix(f"{MARK}=").partition("/")
            return name if mark in (None, found) and name.encode() in arguments else None
    return None


def adopt(name: str, number: int, pid: int) -> Unit:
    """Return a unit that another process has started."""
    return Unit(name, number, pid, time.monotonic(), _start_of(pid))


def leader_of(pid: int, name: str) -> int | None:
    """Return the process that leads a unit, by that of its worker; None: it is no unit of ours, or has ended.

    The two differ if a supervisor or a launcher runs the worker; then only Linux tells whether it is a unit.
    If that was killed alone, the worker is what is left of the unit, and leads it.

    Args:
        pid: The process id of a worker that is registered under the unit's name, on this machine.
        name: The name.
    """
    try:
        leader = os.getsid(pid)
        os.kill(leader, 0)
    except ProcessLookupError:
        return pid if _name_of(pid, None) == name else None
    except OSError:  # it is of another user
        return None
    return leader if leader == pid or unit_name(leader, None) == name else None


def _start_of(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None: the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[START_FIELD])


def _is(pid: int, start: int | None) -> bool:
    """Return whether a process runs, and began when it should have."""
    try:
        os.kill(pid, 0)
    except OSError:  # it has ended, or is of another user by now
        return False
    if start is None:
        return True
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and int(fields[START_FIELD]) == start
