"""The memory of the processes below this one, by what they do."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How often the processes are looked at (s). A plan of Spark takes some tenths of a second.
INTERVAL = 0.05
#: What a process is, by a part of its command line; the first that is found counts. A worker of Spark that
#: runs tasks is forked from `pyspark.daemon`; those that plan, and the one of a stream, name their module.
KINDS = {
    "/java ": "jvm",
    "valkey-server": "server",
    "redis-server": "server",
    "pyspark.sql.worker": "planner",
    "pyspark.sql.streaming": "planner",
    "pyspark.daemon": "executor",
    "pyspark/daemon": "executor",
}


class Footprint:
    """The largest resident size of a process of each kind, in MB: `driver` is this one."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self._kinds: dict[int, str] = {}
        self._ended = threading.Event()

    def sample(self) -> None:
        """Look at all processes until the end."""
        while True:
            for pid in _tree(os.getpid()):
                kind = self._kinds.get(pid) or self._kinds.setdefault(pid, _kind(pid))
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), _resident(pid))
            if self._ended.wait(INTERVAL):
                return

    def end(self) -> None:
        """Look no more."""
        self._ended.set()


@contextmanager
def footprint() -> Iterator[Footprint]:
    """Measure the memory of this process and of those below it during the block."""
    found = Footprint()
    thread = threading.Thread(target=found.sample, name="footprint", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.end()
        thread.join()


def _tree(root: int) -> list[int]:
    """Return a process and all below it."""
    below: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            below[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
    found = [root]
    for pid in found:
        found += below[pid]
    return found


def _kind(pid: int) -> str:
    if pid == os.getpid():
        return "driver"
    command = _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")
    return next((kind for part, kind in KINDS.items() if part in command), "other")


def _resident(pid: int) -> float:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _read(path: Path) -> str:
    """Return a file of /proc; it is empty if the process has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
