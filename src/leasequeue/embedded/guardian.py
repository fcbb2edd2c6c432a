"""A server process that ends with this process.

A guardian, a shell script of a few lines, is the server's parent and holds one end of a pipe, the lifeline.
When this process closes the other end, by stopping the server or by dying (SIGKILL included), the guardian
ends the server and removes its private folder. Linux's parent-death signal does not suffice: it is bound to
the thread that started the server, and other systems have none.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from leasequeue.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

#: A unix socket's path has at most 104 bytes on macOS, 108 on Linux; 27 follow the temporary folder.
_LONGEST_TEMP = 70
_LOG_BYTES = 4096
_LOG_LINES = 8

# $1: the private folder. $2: how many tenths of a second the server has to shut down; 0 kills it at once.
# stdin: the lifeline; its end means "end the server", a line on it means "at once". stdout: the lock on the
# data, which only the server keeps, so that both end together.
# What the server writes is for this user alone, wherever it is told to write it.
_SCRIPT = r"""
umask 077
folder=$1 grace=$2
shift 2
exec 3<&0 4>&1 </dev/null >&2
"$@" 3<&- &
server=$!
exec 4>&-
{
    if read -r line <&3; then grace=0; fi
    [ "$grace" -eq 0 ] || kill -TERM "$server"
    while [ "$grace" -gt 0 ] && kill -0 "$server" 2>/dev/null; do
        sleep 0.1
        grace=$((grace - 1))
    done
    kill -KILL "$server" 2>/dev/null
} &
watcher=$!
exec 3<&-
wait "$server"
kill "$watcher" 2>/dev/null
wait "$watcher" 2>/dev/null
rm -rf -- "$folder"
"""


class Guarded:
    """A server, its guardian and their private folder, which end together.

    Attributes:
        folder: The private folder with socket, pid file and log; removed when the server has ended.
    """

    def __init__(self, folder: Path, command: Sequence[str], *, lock: BinaryIO | None, grace: float) -> None:
        """Spawn the server without waiting for it.

        Args:
            folder: From `private_folder`; removed when the server has ended.
            command: The server program and its options.
            lock: A locked file; it stays locked while the server runs.
            grace: Seconds that the server has to shut down after `release`; 0 kills it at once.

        Raises:
            EmbeddedServerError: If /bin/sh cannot be started.
        """
        self.folder = folder
        # Opened for appending, so that reading does not move the server's position; and kept open, so that
        # it can be read after the folder is removed.
        self._log = (folder / "server.log").open("ab+", buffering=0)
        shell = ["/bin/sh", "-c", _SCRIPT, "leasequeue", str(folder), str(round(grace * 10))]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the program is the caller's, or `find_server` found it
                [*shell, *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=lock or subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,  # so that Ctrl-C in the terminal does not reach the server
            )
        except OSError as error:
            self._log.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise EmbeddedServerError(f"/bin/sh did not start: {error}") from error
        _started.add(self)

    @property
    def running(self) -> bool:
        """Whether the guardian is running, which ends last."""
        return self._process.poll() is None

    def log_end(self) -> str:
        """Return the last lines of the server's log, indented. Not after `close_log`."""
        file = self._log.fileno()
        start = max(0, os.fstat(file).st_size - _LOG_BYTES)
        text = os.pread(file, _LOG_BYTES, start).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:] or ["(nothing)"]
        return "\n".join(f"    {line}" for line in lines)

    def close_log(self) -> None:
        """Close the log here; the server continues to write it."""
        self._log.close()

    def release(self) -> None:
        """Close the lifeline and return; the guardian then ends the server."""
        if self._process.stdin:
            self._process.stdin.close()

    def kill(self) -> None:
        """End the server at once, wait for it, and close the log. It takes some milliseconds."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it has already ended
                self._process.stdin.write(b"at once\n")
        self.release()
        self._process.wait()
        self.close_log()


def private_folder() -> Path:
    """Make a folder that only this user can enter, with a path short enough for a unix socket in it."""
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) <= _LONGEST_TEMP else "/tmp"  # noqa: S108 - mkdtemp makes it safe
    return Path(tempfile.mkdtemp(prefix="leasequeue-", dir=base))


_started: weakref.WeakSet[Guarded] = weakref.WeakSet()


def _release_copies() -> None:
    """Close the lifelines that a fork has copied, so that the child does not keep the servers running."""
    for guarded in _started:
        guarded.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_release_copies)
