"""A server process that ends with ours.

Between us and the server stands a guardian, a shell of a few lines that holds one end of a pipe, the
lifeline. When our end closes, because we stopped the server or because we died in whatever way (SIGKILL
included), the guardian ends the server and removes its private folder. Linux's "signal me when my parent
dies" would not do: it is tied to the thread that started the server, and other systems have none.
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

from leasehold.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

#: A unix socket's path ends at 104 bytes on macOS and at 108 on Linux; ours adds 27 to the temporary folder.
_LONGEST_TEMP = 70
_LOG_BYTES = 4096
_LOG_LINES = 8

# $1: the private folder. $2: how many tenths of a second the server has for a clean end; 0 kills it at once.
# In: the lifeline; its end means "end the server", a line on it means "at once". Out: the lock on the data,
# which the server alone keeps, so that the two end together.
_SCRIPT = r"""
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
    """A server, its guardian and their private folder, which all end together.

    Attributes:
        folder: The private folder: socket, pid file and log. Gone when the server is.
    """

    def __init__(self, folder: Path, command: Sequence[str], *, lock: BinaryIO | None, grace: float) -> None:
        """Spawn the server without waiting for it.

        Args:
            folder: From `private_folder`; removed when the server has ended.
            command: The server program and its options.
            lock: A locked file; the lock is kept as long as the server lives.
            grace: Seconds that the server has for a clean end when it is let go; 0 kills it at once.

        Raises:
            EmbeddedServerError: If there is no shell to start it with.
        """
        self.folder = folder
        # Appending, so that reading here does not move the place where the server writes; and open, so that
        # the end of it can still be read when the folder has gone.
        self._log = (folder / "server.log").open("ab+", buffering=0)
        shell = ["/bin/sh", "-c", _SCRIPT, "leasehold", str(folder), str(round(grace * 10))]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the program is the caller's or one that we found
                [*shell, *command],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=lock or subprocess.DEVNULL,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle, not the server's
            )
        except OSError as error:
            self._log.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise EmbeddedServerError(f"/bin/sh did not start: {error}") from error
        _ours.add(self)

    @property
    def running(self) -> bool:
        """Whether anything of it is left."""
        return self._process.poll() is None

    def log_end(self) -> str:
        """Return the last lines of the server's log, indented. Not after `close_log`."""
        file = self._log.fileno()
        start = max(0, os.fstat(file).st_size - _LOG_BYTES)
        text = os.pread(file, _LOG_BYTES, start).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()][-_LOG_LINES:] or ["(nothing)"]
        return "\n".join(f"    {line}" for line in lines)

    def close_log(self) -> None:
        """Stop holding the log open; the server goes on writing it."""
        self._log.close()

    def let_go(self) -> None:
        """Close our end of the lifeline and return; the guardian does the rest."""
        if self._process.stdin:
            self._process.stdin.close()

    def kill(self) -> None:
        """End the server at once and return when it has gone, some milliseconds later. Close the log."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):  # it has gone already
                self._process.stdin.write(b"at once\n")
        self.let_go()
        self._process.wait()
        self.close_log()


def private_folder() -> Path:
    """Make a folder that only this user can enter, with a path short enough for a unix socket in it."""
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) <= _LONGEST_TEMP else "/tmp"  # noqa: S108 - mkdtemp makes it safe
    return Path(tempfile.mkdtemp(prefix="leasehold-", dir=base))


_ours: weakref.WeakSet[Guarded] = weakref.WeakSet()


def _let_go_of_copies() -> None:
    """A fork copies our ends of the lifelines; the child must not keep our servers alive after us."""
    for guarded in _ours:
        guarded.let_go()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_let_go_of_copies)
