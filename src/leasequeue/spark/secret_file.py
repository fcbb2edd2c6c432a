"""A file with a secret that outlives neither its block nor its process."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How the names of the files begin.
PREFIX = "leasequeue-url-"
#: Waits for the end of its input, which only this process can write to, and removes the file.
_WATCH = ("/bin/sh", "-c", 'read -r _; rm -f -- "$0"')


@contextmanager
def secret_file(text: str) -> Iterator[Path]:
    """Write a text into a file that only this user can read, and remove it at the end of the block.

    If this process ends within the block, a small child removes the file: no signal handler is needed, which
    would be in the way of the program's, and it works in every thread and after SIGKILL. If the child is
    killed too, with the whole container or by a failure of power, the next call removes the file.
    """
    remove_abandoned()
    handle, path = _create()
    try:
        # A separate session: signals to the group of this process must not end the child.
        with subprocess.Popen(  # noqa: S603 - the command is fixed; the path is its only argument
            (*_WATCH, path),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        ) as watch:
            os.write(handle, text.encode())
            try:
                yield Path(path)
            finally:
                Path(path).unlink(missing_ok=True)
                # Its input may stay open in processes forked within the block, so it would not end by itself.
                watch.kill()
    finally:
        Path(path).unlink(missing_ok=True)
        os.close(handle)


def remove_abandoned() -> None:
    """Remove the files of processes that have ended, of this user and in this folder for temporary files.

    A process holds a lock on its file, which the system releases when the process ends.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            status = path.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                continue
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                if _locked(handle):
                    path.unlink()
            finally:
                os.close(handle)


def _create() -> tuple[int, str]:
    while True:
        handle, path = tempfile.mkstemp(prefix=PREFIX)
        # Until it is locked, another process may take it for abandoned.
        if _locked(handle) and os.fstat(handle).st_nlink:
            return handle, path
        os.close(handle)


def _locked(handle: int) -> bool:
    import fcntl  # not on Windows, where URLs without a password need no file

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
