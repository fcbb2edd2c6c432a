"""A private PostgreSQL server for the tests, of the program that tests/setup-machine.sh installs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.eventually import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where Debian puts the programs, which are not on the PATH.
DEBIAN = "/usr/lib/postgresql"
#: PostgreSQL refuses to be run by root.
USER = "nobody" if os.geteuid() == 0 else None
#: On a socket in its folder, and without waiting for the disk.
SETTINGS = "-c listen_addresses= -c fsync=off -c unix_socket_directories={folder}"


class Postgres:
    """A server that can be killed and started again. As a child of this process it leaves no zombie.

    Attributes:
        location: How to connect to it.
    """

    def __init__(self, folder: str, program: str) -> None:
        settings = SETTINGS.format(folder=folder)
        self._data = Path(folder, "data")
        self._command = [program, "-D", str(self._data), *settings.split()]
        self._log = Path(folder, "log")
        self._process: subprocess.Popen[bytes] | None = None
        self.location = f"host={folder} user=tests dbname=postgres"

    def start(self) -> None:
        """Start it, recover its data if it was killed, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, user=USER, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        note, deadline = self._data / "postmaster.pid", time.monotonic() + LIMIT_SECONDS
        while not (note.exists() and note.read_text().rstrip().endswith("ready")):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop it without a checkpoint, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(LIMIT_SECONDS)

    def kill(self) -> None:
        """Kill all of its processes with SIGKILL."""
        assert self._process is not None
        command = ["ps", "-o", "pid=", "--ppid", str(self._process.pid)]
        children = subprocess.run(command, capture_output=True, check=True).stdout.split()
        for pid in (self._process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(LIMIT_SECONDS)
        (self._data / "postmaster.pid").unlink()  # which says that it is ready


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Run a new server, and stop it at the end if it still runs.

    Raises:
        FileNotFoundError: If PostgreSQL is not installed.
    """
    path = os.pathsep.join([os.environ["PATH"], *map(str, sorted(Path(DEBIAN).glob("*/bin"), reverse=True))])
    initdb, program = shutil.which("initdb", path=path), shutil.which("postgres", path=path)
    if initdb is None or program is None:
        raise FileNotFoundError("PostgreSQL is missing: tests/setup-machine.sh postgres")
    # Not in pytest's folder, which only its owner can enter; and short, as the name of a socket must be.
    with tempfile.TemporaryDirectory(prefix="leasequeue-postgres-") as folder:
        if USER is not None:
            os.chown(folder, pwd.getpwnam(USER).pw_uid, -1)
        options = ("--auth=trust", "--username=tests", "--no-sync", "--encoding=UTF8")
        subprocess.run(
            (initdb, "--pgdata", f"{folder}/data", *options),
            check=True,
            user=USER,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        server = Postgres(folder, program)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def postgres() -> Iterator[str]:
    """Run a new server, and return how to connect to it. See `running_postgres`."""
    with running_postgres() as server:
        yield server.location
