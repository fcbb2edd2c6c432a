"""Servers that this process starts, and servers that run elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, unquote, urlsplit

from leasequeue.embedded.guardian import Guarded, private_folder
from leasequeue.embedded.program import find_server, inspect_program
from leasequeue.errors import EmbeddedServerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from leasequeue.embedded.program import ServerProgram

_PathLike = str | os.PathLike[str]

#: How long a starting server may stay silent (s). "LOADING" is an answer.
READY_SECONDS = 10.0
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.005
_PORT_TRIES = 5
#: What a client may do, and what over TCP without a password: then, any user of this machine is a client, and
#: must neither write files, with Redis 6.2 anywhere, nor replicate, lock others out or load programs.
RULES = "~* &* +@all"
OPEN_RULES = f"{RULES} -@admin -migrate +client +config|get +acl|whoami +acl|getuser +latency +slowlog"


class RunningServer:
    """A server for queues. This class represents one that was started elsewhere.

    Attributes:
        url: The URL for clients: `redis://127.0.0.1:40123/0`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    async def stop(self) -> None:
        """Do nothing: a server that was started elsewhere keeps running."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class EmbeddedServer(RunningServer):
    """A server that this process has started. It ends with the process, even if that is killed.

    It listens on a unix socket that only this user can open, and on a TCP port only if one is asked for, with
    a password. What it writes, this user alone can read. It evicts nothing. The object belongs to no event
    loop: it may be started in one and stopped in another.

    Attributes:
        url: The URL for clients: `unix:///tmp/leasequeue-ab12cd34/socket?db=0`, or with a port
            `redis://:…@127.0.0.1:6379/0`, with the password.
        port: The TCP port; 0: none.
        socket_path: The unix socket, in a private folder that is removed with the server.
        pid: The process id of the server.
        program: The server program.
        dir: The folder with the data; None: the data is in memory only.

    Example:
        ```python
        async with await EmbeddedServer.start() as server:
            queue = AsyncWorkQueue.from_url(server.url, "emails")
        ```
    """

    def __init__(
        self, program: ServerProgram, data: Path | None, host: str, port: int, password: str | None
    ) -> None:
        """Spawn the server without waiting for it. Call `start` instead."""
        self.program = program
        self.port = port
        self.dir = data
        self.pid = 0
        self._host = host
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(_locked(data)) if data else None
            folder = private_folder()
            self.socket_path = str(folder / "socket")
            if password is None and port:
                password = (lock and _password_in(lock)) or secrets.token_hex(16)
            self._password = password or ""
            login = f":{quote(self._password, safe='')}@" if password else ""
            place = f"redis://{login}{f'[{host}]' if ':' in host else host}:{port}/0"
            super().__init__(place if port else f"unix://{login}{self.socket_path}?db=0")
            if lock:
                lock.truncate(0)
                lock.write(self.url.encode())
            command = [str(program.path), str(self._config_in(folder)), *self._options(folder)]
            self._guarded = Guarded(folder, command, lock=lock, grace=_GRACE_SECONDS if data else 0)

    @classmethod
    async def start(
        cls,
        *,
        dir: _PathLike | None = None,  # noqa: A002 - the server's own word for it
        port: int | None = None,
        binary: _PathLike | None = None,
        host: str = "127.0.0.1",
        password: str | None = None,
    ) -> Self:
        """Start a server and return when it answers.

        A start that fails or is cancelled leaves no process and no private folder behind.

        Args:
            dir: The folder for the data, created if missing. The data survives restarts and, except for the
                last second or two, crashes. The URL is in its file `leasequeue.lock`, for this user alone.
                None keeps the data in memory only.
            port: A TCP port to listen on, too; 0 takes a free one, None opens none.
            binary: The server program; None takes the one that `find_server` finds.
            host: The address of the port.
            password: With a port, None takes a random one, or that of the last server with this `dir`. With
                `""` there is none: any user of this machine may read and write all data, but not configure
                the server.

        Raises:
            EmbeddedServerError: If there is no server program, if `dir` is in use by another server or cannot
                be written, if other machines could reach a server without a password, or if the server ended
                or stayed silent for 10 seconds; then with the last lines of its log.

        Example:
            ```python
            server = await EmbeddedServer.start(dir="./data")
            ...
            await server.stop()
            ```
        """
        if password == "" and not _is_loopback(host):
            raise EmbeddedServerError(
                f"{host} is an address that other machines may reach: set a password "
                "(`leasequeue serve --password`), or listen on 127.0.0.1"
            )
        program, folder = await asyncio.to_thread(_prepare, binary, dir)
        for tries_left in reversed(range(_PORT_TRIES)):
            chosen = _free_port() if port == 0 else port or 0
            server = cls(program, folder, host, chosen, password)
            try:
                await server._ready()
            except BaseException as error:
                server._guarded.kill()
                # Another process may have taken the free port: then try another one.
                taken = isinstance(error, EmbeddedServerError) and "in use" in str(error)
                if port != 0 or not taken or not tries_left:
                    raise
            else:
                return server
        raise AssertionError("the last try returns or raises")

    @property
    def running(self) -> bool:
        """Whether the server is running."""
        return self._guarded.running

    async def stop(self) -> None:
        """End the server, and return when it and its private folder are gone. Stopping twice is fine.

        With `dir=` it has five seconds to save its data; without, it is killed. If the caller is cancelled,
        the server ends nevertheless.
        """
        self._guarded.release()
        while self.running:  # noqa: ASYNC110 - the process belongs to no event loop
            await asyncio.sleep(_POLL_SECONDS)

    def _config_in(self, folder: Path) -> Path:
        """Write what other users must not see in the arguments of the process; return the file."""
        file = folder / "config"
        file.touch(mode=0o600)
        hashed = hashlib.sha256(self._password.encode()).hexdigest()
        open_rules = OPEN_RULES if self.port else RULES
        rules = f"#{hashed} {RULES}" if self._password else f"nopass {open_rules}"
        file.write_text(f"user default on {rules}\n")
        return file

    def _options(self, folder: Path) -> Iterator[str]:
        options = {
            "bind": self._host,
            "port": str(self.port),
            "unixsocket": self.socket_path,
            "unixsocketperm": "600",
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
        """Wait until the server answers on its private socket, where no other server can answer."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READY_SECONDS) as limit:
                while (answer := await _ping(self.socket_path, self._password)) != b"+PONG\r\n":
                    if not self.running:
                        raise self._failure("ended while it was starting")
                    if answer.startswith(b"-LOADING"):
                        limit.reschedule(loop.time() + READY_SECONDS)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise self._failure(f"did not answer within {READY_SECONDS:.0f} seconds") from None
        self._guarded.close_log()
        self.pid = int((self._guarded.folder / "pid").read_text())

    def _failure(self, what: str) -> EmbeddedServerError:
        program = f"{self.program.path} ({self.program.origin})"
        return EmbeddedServerError(f"{program} {what}. The last lines of its log:\n{self._guarded.log_end()}")


async def open_server(
    *,
    dir: _PathLike | None = None,  # noqa: A002 - the server's own word for it
    port: int | None = None,
    binary: _PathLike | None = None,
) -> RunningServer:
    """Return the server that the environment variable REDIS_URL names, or start one.

    If REDIS_URL is set, nothing is started, the arguments are ignored, and `stop` leaves the server running.
    So a program that was written with an embedded server moves to a shared one without a change.

    Args:
        dir: As for `EmbeddedServer.start`.
        port: As for `EmbeddedServer.start`.
        binary: As for `EmbeddedServer.start`.

    Raises:
        EmbeddedServerError: As for `EmbeddedServer.start`. Whether the server that REDIS_URL names answers
            is not checked.

    Example:
        ```python
        async with await open_server() as server:
            print(server.url)
        ```
    """
    if url := os.environ.get("REDIS_URL"):
        return RunningServer(url)
    return await EmbeddedServer.start(dir=dir, port=port, binary=binary)


def _prepare(binary: _PathLike | None, folder: _PathLike | None) -> tuple[ServerProgram, Path | None]:
    """Find the files that a start needs; it may block, so `start` calls it in a thread."""
    if sys.platform == "win32":
        raise EmbeddedServerError("servers do not run on Windows: use WSL, or a server on another machine")
    program = find_server() if binary is None else inspect_program(Path(binary), origin="as asked for")
    return program, Path(folder).expanduser().absolute() if folder is not None else None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
        # An IPv4 address in IPv6 counts as loopback since Python 3.13, but a server cannot listen on it.
        return address.is_loopback and getattr(address, "ipv4_mapped", None) is None
    except ValueError:  # a name, which may be any machine's, or several addresses
        return False


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[BinaryIO]:
    """Lock a data folder, until the last process that has the file open has ended. It holds the URL."""
    import fcntl  # not on Windows, which `_prepare` has refused

    file = folder / "leasequeue.lock"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW  # others may write there, too: no link
        lock = os.fdopen(os.open(file, how, 0o600), "ab+", buffering=0)
    except OSError as error:
        raise EmbeddedServerError(f"the data cannot be kept in {folder}: {error}") from error
    with lock:
        if os.fstat(lock.fileno()).st_uid != os.geteuid():
            raise EmbeddedServerError(f"{file} is of another user, who could read the password: remove it")
        os.fchmod(lock.fileno(), 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            url = re.sub("//.*@", "//", lock.read().decode(errors="replace"))
            raise EmbeddedServerError(
                f"{folder} is in use by another server ({url}): connect to that one, with the URL in {file}, "
                "or use another folder"
            ) from None
        yield lock


def _password_in(lock: BinaryIO) -> str:
    """Return the password of the last server with this folder, whose URL its clients have; empty: none."""
    lock.seek(0)
    with contextlib.suppress(ValueError):  # it is no URL
        return unquote(urlsplit(lock.read().decode()).password or "")
    return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _ping(path: str, password: str) -> bytes:
    """Send PING; return the first line of the answer, or nothing if no server listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            if password:
                given = password.encode()
                writer.write(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(given), given))
                await reader.readline()
            writer.write(b"PING\r\n")
            return await reader.readline()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except OSError:
        return b""
