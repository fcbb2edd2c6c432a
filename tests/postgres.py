"""A private PostgreSQL server for the tests, of the program that tests/setup-machine.sh installs."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Where Debian puts the programs, which are not on the PATH.
DEBIAN = "/usr/lib/postgresql"
#: PostgreSQL refuses to be run by root.
USER = "nobody" if os.geteuid() == 0 else None
#: On a socket in its folder, and without waiting for the disk.
SETTINGS = "-c listen_addresses= -c fsync=off -c unix_socket_directories={folder}"


@contextmanager
def postgres() -> Iterator[str]:
    """Run a new server, and return how to connect to it.

    Raises:
        FileNotFoundError: If PostgreSQL is not installed.
    """
    path = os.pathsep.join([os.environ["PATH"], *map(str, sorted(Path(DEBIAN).glob("*/bin"), reverse=True))])
    initdb, pg_ctl = shutil.which("initdb", path=path), shutil.which("pg_ctl", path=path)
    if initdb is None or pg_ctl is None:
        raise FileNotFoundError("PostgreSQL is missing: tests/setup-machine.sh postgres")
    # Not in pytest's folder, which only its owner can enter; and short, as the name of a socket must be.
    with tempfile.TemporaryDirectory(prefix="leasequeue-postgres-") as folder:
        if USER is not None:
            os.chown(folder, pwd.getpwnam(USER).pw_uid, -1)
        data = f"{folder}/data"
        run(initdb, "--pgdata", data, "--auth=trust", "--username=tests", "--no-sync", "--encoding=UTF8")
        settings = SETTINGS.format(folder=folder)
        run(pg_ctl, "start", "--wait", "--pgdata", data, "--log", f"{folder}/log", "--options", settings)
        try:
            yield f"host={folder} user=tests dbname=postgres"
        finally:
            run(pg_ctl, "stop", "--wait", "--pgdata", data, "--mode=immediate")


def run(*command: str) -> None:
    """Run a program of PostgreSQL to its end."""
    subprocess.run(
        command, check=True, user=USER, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
