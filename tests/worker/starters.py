"""Functions for handler processes that start something which outlives them, or breaks their process."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

#: A program that only waits.
WAITS = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]


def leave_behind(what: str) -> None:
    """Start something that lives on, note its process id in a file, and end this process."""
    how, path = what.split(maxsplit=1)
    Path(path).write_text(f"{start(how)}")
    os._exit(3)


def start(how: str) -> int:
    """Start something that lives on; return its process id, or 0."""
    if how == "thread":
        threading.Thread(target=time.sleep, args=(3600,)).start()
        return 0
    if how == "program":
        return subprocess.Popen(WAITS, close_fds=False).pid
    # As a library in C would: no hook of Python is called.
    pid = ctypes.PyDLL(None).fork()
    if not pid:
        time.sleep(3600)
    return int(pid)


def both_return(_: bytes) -> int:
    """Return in two processes, in this one after the other has ended."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid


def terminate(how: str) -> int:
    """Terminate what this has started, and return how it has ended."""
    if how == "program":
        program = subprocess.Popen(WAITS)
        program.terminate()
        return program.wait()
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode or 0


def survive(_: bytes) -> str:
    """Be sent the signals that a terminal and a supervisor send to the whole group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    time.sleep(0.01)
    return "alive"
