"""Servers that are started here, and those that somebody else runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

from leasehold.embedded.guardian import Guarded, private_folder
from leasehold.embedded.program import find_server, inspect_program
from leasehold.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from leasehold.embedded.program import ServerProgram

_PathLike = str | os.PathLike[str]

#: A server that says nothing for this long, in seconds, has not started. "I am loading" counts as saying.
READY_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.005
_PORT_TRIES = 5


class Server:
    """A server to keep queues on. This class stands for one that somebody else runs.

    Attributes:
        url: What a client connects to: `redis://127.0.0.1:40123/0`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def stop(self) -> None:
        """Do nothing: a server that somebody else runs is left running."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class EmbeddedServer(Server):
    """A server that was started here and ends with us, however we end.

    It listens on 127.0.0.1, where any user of this machine can reach it as any local Redis without a
    password, and on a unix socket that only this user can open. It evicts nothing. The object belongs to no
    event loop: it may be started in one and stopped in another.

    Attributes:
        url: What a client connects to: `redis://127.0.0.1:40123/0`.
        port: The TCP port.
        socket_path: The unix socket, in a private folder that goes with the server.
        pid: The process id of the server itself.
        program: The server program.
        dir: The folder with the data, or None when they live in memory only.

    Example:
        ```python
        async with await EmbeddedServer.start() as server:
            queue = AsyncWorkQueue.from_url(server.url, "emails")
        ```
    """

    def __init__(self, program: ServerProgram, *, dir: Path | None, port: int) -> None:  # noqa: A002 - its name
        """Spawn the server without waiting for it; everybody but `start` calls `start`."""
        super().__init__(f"redis://127.0.0.1:{port}/0")
        self.program = program
        self.port = port
        self.dir = dir
        self.pid = 0
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(_locked(dir)) if dir else None
            folder = private_folder()
            self.socket_path = str(folder / "socket")
            command = [str(program.path), *self._options(folder)]
            self._guarded = Guarded(folder, command, lock=lock, grace=_GRACE_SECONDS if dir else 0)

    @classmethod
    async def start(
        cls,
        *,
        dir: _PathLike | None = None,  # noqa: A002 - the server's own word for it
        port: int | None = None,
        binary: _PathLike | None = None,
    ) -> Self:
        """Start a server and return when it answers.

        A start that fails or is cancelled leaves neither a process nor a private folder behind.

        Args:
            dir: The folder that keeps the data, made if missing: they survive restarts and, but for the last
                second or two, crashes. None keeps them in memory only.
            port: The TCP port on 127.0.0.1; None takes a free one.
            binary: The server program; None takes what `find_server` finds.

        Raises:
            EmbeddedServerError: If there is no server program, if `dir` is in use by another server or cannot
                be written, or if the server ended or stayed silent for 10 seconds; then with the last lines
                of its log.

        Example:
            ```python
            server = await EmbeddedServer.start(dir="./data")
            ...
            await server.stop()
            ```
        """
        program, folder = await asyncio.to_thread(_prepare, binary, dir)
        for tries_left in reversed(range(_PORT_TRIES)):
            server = cls(program, dir=folder, port=port or _free_port())
            try:
                await server._ready()
            except BaseException as error:
                server._guarded.kill()
                # Was somebody else faster on the port that was free? Then take another one.
                taken = isinstance(error, EmbeddedServerError) and "in use" in str(error)
                if port or not taken or not tries_left:
                    raise
            else:
                return server
        raise AssertionError("the last try returns or raises")

    @property
    def running(self) -> bool:
        """Whether the server is there."""
        return self._guarded.running

    async def stop(self) -> None:
        """End the server and return when it has gone, with its private folder. Stopping twice is no error.

        With `dir=` it has five seconds to write down what it holds; without, it is killed. If the caller is
        cancelled the server ends all the same.
        """
        self._guarded.let_go()
        while self.running:  # noqa: ASYNC110 - the process belongs to no event loop that could tell us
            await asyncio.sleep(_POLL_SECONDS)

    def _options(self, folder: Path) -> Iterator[str]:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "pidfile": str(folder / "pid"),
            "dir": str(self.dir or folder),
            "save": "",
            "appendonly": "yes" if self.dir else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
        }
        for name, value in options.items():
            yield f"--{name}"
            yield value

    async def _ready(self) -> None:
        """Wait until the server answers on its private socket, where nobody else can answer for it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READY_SECONDS) as limit:
                while (answer := await _ping(self.socket_path)) != b"+PONG\r\n":
                    if not self.running:
                        raise self._failure("ended while it was starting")
                    if answer.startswith(b"-LOADING"):
                        limit.reschedule(loop.time() + READY_SECONDS)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not answer within {READY_SECONDS:.0f} seconds") from None
        self._guarded.close_log()
        self.pid = int((self._guarded.folder / "pid").read_text())
        if self.dir:
            _lock_file(self.dir).write_text(self.url)

    def _failure(self, what: str) -> EmbeddedServerError:
        program = f"{self.program.path} ({self.program.origin})"
        return EmbeddedServerError(f"{program} {what}. The end of its log:\n{self._guarded.log_end()}")


async def open_server(
    *,
    dir: _PathLike | None = None,  # noqa: A002 - the server's own word for it
    port: int | None = None,
    binary: _PathLike | None = None,
) -> Server:
    """Use the server that the environment variable REDIS_URL names, or else start one.

    With REDIS_URL set nothing is started, the arguments mean nothing, and `stop` leaves the server running:
    a program written with an embedded server moves to a shared one without a change.

    Args:
        dir: As for `EmbeddedServer.start`.
        port: As for `EmbeddedServer.start`.
        binary: As for `EmbeddedServer.start`.

    Raises:
        EmbeddedServerError: As for `EmbeddedServer.start`. Whether the server that REDIS_URL names answers
            is not looked at.

    Example:
        ```python
        async with await open_server() as server:
            print(server.url)
        ```
    """
    if url := os.environ.get("REDIS_URL"):
        return Server(url)
    return await EmbeddedServer.start(dir=dir, port=port, binary=binary)


def _prepare(binary: _PathLike | None, folder: _PathLike | None) -> tuple[ServerProgram, Path | None]:
    """Look at the files that a start needs, in a thread of its own."""
    if sys.platform == "win32":
        raise EmbeddedServerError("no server runs on Windows itself: use WSL, or a server elsewhere")
    program = find_server() if binary is None else inspect_program(Path(binary), origin="as asked for")
    return program, Path(folder).expanduser().absolute() if folder is not None else None


def _lock_file(folder: Path) -> Path:
    return folder / "leasehold.lock"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[BinaryIO]:
    """Lock a data folder. The lock holds until the last process that was given the file has ended."""
    import fcntl  # not on Windows, which `_prepare` has refused

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _lock_file(folder).open("ab+", buffering=0)
    except OSError as error:
        raise EmbeddedServerError(f"the data cannot be kept in {folder}: {error}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            url = lock.read().decode(errors="replace") or "still starting"
            raise EmbeddedServerError(
                f"{folder} is in use by another server ({url}): join that one, or take another folder"
            ) from None
        lock.truncate(0)
        yield lock


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _ping(path: str) -> bytes:
    """Send PING; return the answer's first line, or nothing as long as nobody listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(b"PING\r\n")
            return await reader.readline()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except OSError:
        return b""
