"""The demo's worker processes: how the demo starts them, and the program that they run.

    REDIS_URL=... python -m leasequeue.cli.demo.workers QUEUE FOLDER OUTPUT LEASE_SECONDS PAUSE_AT PARENT

In its run number PAUSE_AT, counted from 0, a worker prints the item and waits for a line on standard input;
with -1 it waits before it leases anything. It ends when the process PARENT, the demo, ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import logging
import os
import stat
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leasequeue import AsyncWorkQueue, Lease, RetryPolicy, Worker
from leasequeue.cli.formatting import print_line
from leasequeue.item import MAX_ID_BYTES
from leasequeue.worker.child import exit_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

#: Folders to leave out: installed packages and compiled files, which lie beside the standard library.
SKIPPED = {"__pycache__", "dist-packages", "site-packages"}


def find_files(folder: Path, *, output: Path, on_error: Callable[[OSError], None]) -> dict[str, bytes]:
    """Find the regular files below a folder, without following symlinks.

    `output`, that of an earlier demo, is left out; `on_error` gets the errors of unreadable folders.

    Returns:
        For each item id the path below the folder, in the order of the paths.
    """
    folder, output = folder.resolve(), output.resolve()
    paths = []
    for parent, folders, names in os.walk(folder, onerror=on_error):
        folders[:] = set(folders) - SKIPPED
        found = [Path(parent, name) for name in names]
        files = (path for path in found if stat.S_ISREG(path.lstat().st_mode) and path != output)
        paths += [os.fsencode(path.relative_to(folder)) for path in files]
    return {id_of(path): path for path in sorted(paths)}


def id_of(path: bytes) -> str:
    """Return a file's item id: its path, or a hash of it if the path is too long or not UTF-8.

    No path below a folder begins with a slash, so the two kinds of ids cannot collide.
    """
    try:
        if len(path) <= MAX_ID_BYTES:
            return path.decode()
    except UnicodeDecodeError:
        pass
    return f"/sha256/{hashlib.sha256(path).hexdigest()}"


def describe(folder: Path, path: bytes) -> dict[str, Any]:
    """Read a file; return its SHA-256, bytes and lines, or an error if it cannot be read."""
    line = {"id": id_of(path), "path": path.decode(errors="backslashreplace")}
    digest, size, lines = hashlib.sha256(), 0, 0
    try:
        with (folder / os.fsdecode(path)).open("rb") as file:
            while chunk := file.read(1 << 18):
                digest.update(chunk)
                size += len(chunk)
                lines += chunk.count(b"\n")
    except OSError as error:
        return line | {"error": f"{type(error).__name__}: {error.strerror}"}
    return line | {"sha256": digest.hexdigest(), "bytes": size, "lines": lines}


class DemoFailed(Exception):
    """The demo could not be finished."""


@asynccontextmanager
async def worker_process(*arguments: str | Path, url: str) -> AsyncIterator[Process]:
    """Run a worker process; kill it at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "leasequeue.cli.demo.workers", *arguments, str(os.getpid())),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "REDIS_URL": url},  # other users of the machine can read the arguments
        process_group=0,  # Ctrl-C reaches the demo alone
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def watch(process: Process, *expected: int) -> None:
    """Wait until a worker process ends; raise DemoFailed if its exit code is not expected."""
    code = await process.wait()
    if code not in expected:
        raise DemoFailed(f"a worker process ended unexpectedly, with exit code {code}")


async def _work(name: str, folder: Path, output: Path, lease_seconds: float, pause_at: int) -> int:
    logging.getLogger("leasequeue").setLevel(logging.ERROR)  # lost leases are expected
    # "front": an item whose worker died is the next to be leased, not the last.
    queue = AsyncWorkQueue.from_url(os.environ["REDIS_URL"], name, return_to="front")
    # A line that cannot be written is not retried: the disk is full.
    retry = RetryPolicy(rules={OSError: "never"})
    worker = Worker(concurrency=1, lease_time=lease_seconds, retry=retry)
    runs = itertools.count()
    with output.open("ab") as lines:

        @worker.handler(queue)
        def describe_file(lease: Lease) -> None:
            """Write the line of one file, then return, which completes the item.

            In this order, a worker that is killed between the two loses nothing, but a line may be written
            twice: by a slow worker and by the next one. So each line carries the token of its lease, and
            `check.merge` keeps the line with the highest token. A handler that writes to a database does the
            same: it never replaces a row that has a higher token.
            """
            if next(runs) == pause_at:
                print_line(lease.id)
                sys.stdin.readline()
            line = {"token": lease.token, **describe(folder, lease.data)}
            lines.write(json.dumps(line).encode() + b"\n")
            lines.flush()

        if pause_at < 0:
            await asyncio.to_thread(sys.stdin.readline)
        return await worker.serve()


if __name__ == "__main__":
    exit_with(int(sys.argv.pop()))
    _, _name, _folder, _output, _lease_seconds, _pause_at = sys.argv
    sys.exit(asyncio.run(_work(_name, Path(_folder), Path(_output), float(_lease_seconds), int(_pause_at))))
