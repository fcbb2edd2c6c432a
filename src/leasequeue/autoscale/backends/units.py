"""The units on this machine: their commands, and which processes are units."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from leasequeue.worker.supervision import SupervisedProcess

#: The variable that marks the processes of a unit: the mark of its tier, and its name.
MARK = "LEASEQUEUE_UNIT"


@dataclass(eq=False)
class Unit:
    """A unit on this machine. Its process leads a session of its own, with all that it starts."""

    name: str
    number: int
    process: SupervisedProcess
    #: Whether it was seen at work.
    was_ready: bool = False
    #: Whether it was ordered to fetch nothing more; and when to do that, or the contrary (`time.monotonic`).
    quieted: bool = False
    ordered: float = -math.inf
    #: When it was ordered to stop, by `time.monotonic()`.
    stopped: float | None = None
    #: Whether that was by a signal. A second one would interrupt its runs.
    signalled: bool = False

    @property
    def active(self) -> bool:
        """Whether it runs and is not leaving."""
        return self.process.alive() and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether it was ordered to fetch nothing more, or to stop."""
        return self.quieted or self.stopped is not None


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


def find_units(mark: str) -> Iterator[tuple[int, str]]:
    """Return the processes of this user that lead a session and bear a mark, and their names.

    Only Linux shows the environment of processes; elsewhere nothing is found.
    """
    for place in Path("/proc").glob("[0-9]*"):
        pid = int(place.name)
        name = unit_name(pid, mark)
        if name is not None:
            yield pid, name


def unit_name(pid: int, mark: str | None) -> str | None:
    """Return the name of the unit that a process leads; None: it leads none, or the system does not say.

    Programs that a unit has started inherit the variable, and may lead a session, too: those are no units,
    as their arguments do not have the name. Without a mark, that of any tier will do.
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


def leader_of(pid: int, name: str) -> int | None:
    """Return the process that leads a unit, by that of its worker; None: it is no unit of ours, or has ended.

    The two differ if a supervisor or a launcher runs the worker; then only Linux shows whether it is a unit.
    If that was killed alone, the worker is what is left of the unit, and leads it.
    """
    try:
        leader = os.getsid(pid)
        os.kill(leader, 0)
    except ProcessLookupError:
        return pid if _name_of(pid, None) == name else None
    except OSError:  # it is of another user
        return None
    return leader if leader == pid or unit_name(leader, None) == name else None
