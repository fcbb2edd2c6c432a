"""Processes that hold the file with a URL: `secret_program KIND …`. A line for each: kind, process id, file.

Kinds: `plain`; `thread`, which holds it in another thread; `handler`, with its handler of SIGTERM;
`exit`, which ends as soon as its input does; `forks`, which does so while a process forked within the block
is still there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

from leasequeue.spark.options import server_options

URL = "redis://user:secret@localhost"


def main(*kinds: str) -> None:
    """Start a process of each kind."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which children of `nohup` ignore
    for kind in kinds:
        if not os.fork():
            hold(kind)
    for _ in kinds:
        os.wait()


def hold(kind: str) -> NoReturn:
    """Hold the file until a signal comes."""
    if kind == "handler":
        signal.signal(signal.SIGTERM, stop)
    if kind == "thread":
        threading.Thread(target=wait_in_block, args=(kind,), daemon=True).start()
        threading.Event().wait()
    wait_in_block(kind)
    sys.exit(0)


def wait_in_block(kind: str) -> None:
    """Write a line with the file's name, and wait for a signal or the end of the input."""
    with server_options(URL) as options:
        sys.stdout.write(f"{kind} {os.getpid()} {options['urlFile']}\n")
        sys.stdout.flush()
        forked = os.fork() if kind == "forks" else None
        if kind in ("exit", "forks") and forked != 0:
            sys.stdin.read()
        else:
            threading.Event().wait()
    if forked:
        os.kill(forked, signal.SIGKILL)


def stop(_signal: int, _frame: object) -> NoReturn:
    """Say that this handler runs, and end in the way of a program."""
    sys.stdout.write("handled\n")
    sys.stdout.flush()
    sys.exit(3)


if __name__ == "__main__":
    main(*sys.argv[1:])
