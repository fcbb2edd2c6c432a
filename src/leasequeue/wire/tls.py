"""Connects with or without TLS, and finds out why an encrypted connection cannot be made.

Where only one side uses TLS, a connection is merely cut or silent, as if the server were down. So a second
connection asks the same port in the other way, and only its answer decides. A server that accepts no more
connections says so and closes them at once, mostly before redis-py, which writes first, reads it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import ssl
from typing import TYPE_CHECKING

from redis.asyncio.connection import SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from leasequeue.errors import TlsFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis.asyncio.connection import AbstractConnection

    from leasequeue.errors import TlsReason

#: After how many seconds of silence in a TLS handshake the port is asked without TLS, and how long a port
#: may take to answer (s).
SILENT_SECONDS, ANSWER_SECONDS = 0.5, 1.0

#: What a server without room for a further connection says, in a cluster with more words, and how soon (s).
IS_FULL, FULL_SECONDS = "max number of clients", 0.25

# By the reasons of OpenSSL, whose names differ between its versions.
_REASONS: tuple[tuple[str, TlsReason], ...] = (
    ("CERTIFICATE_VERIFY_FAILED", "server certificate"),
    (
        r"ALERT_.*(CERTIFICATE|UNKNOWN_CA|HANDSHAKE_FAILURE|ACCESS_DENIED|DECRYPT_ERROR)",
        "client certificate",
    ),
    ("WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|PACKET_LENGTH_TOO_LONG|HTTP_REQUEST", "plain port"),
    ("PROTOCOL|CIPHER|INSUFFICIENT_SECURITY", "protocol"),
    ("KEY_VALUES_MISMATCH|NO_START_LINE|NO_CERTIFICATE|PEM", "files"),
)


async def connect(connection: AbstractConnection) -> None:
    """Open a connection of redis-py, and log in.

    Raises:
        TlsFailed: If an encrypted connection is needed, or cannot be made and the cause is not an error of
            `ssl`, which `why_tls_failed` reads.
        RedisError, OSError: All other errors, as redis-py has them.
    """
    if isinstance(connection, SSLConnection):
        await _connect_with_tls(connection)
        return
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # theirs has no types
    except (RedisError, OSError) as error:
        if _was_cut(error) and (said := await _said_at_first(connection)):
            raise RedisConnectionError(said) from error
        host, port = address_of(connection)
        if host and _was_cut(error) and await _expects_tls(host, port):
            raise TlsFailed("TLS port", str(error)) from error
        raise


def why_tls_failed(error: BaseException) -> TlsFailed | None:
    """Return our error if an exception, or its cause, is one of `ssl` that another try would not avoid."""
    for one in _chain(error):
        if isinstance(one, ssl.SSLError):
            words = f"{one.reason or ''} {one}".upper()
            for pattern, reason in _REASONS:
                if re.search(pattern, words):
                    return TlsFailed(reason, str(error))
    return None


async def _connect_with_tls(connection: SSLConnection) -> None:
    connecting = asyncio.ensure_future(connection.connect())  # type: ignore[no-untyped-call]  # as above
    try:
        silent = not (await asyncio.wait([connecting], timeout=SILENT_SECONDS))[0]
        host, port = address_of(connection)
        if silent and host and await _answers_plainly(host, port):
            raise TlsFailed("plain port", f"no TLS handshake with {host}:{port}")
        await connecting
    except (RedisError, OSError) as error:
        if any(map(_is_of_a_file, _chain(error))):
            raise TlsFailed("files", str(error)) from error
        if connection.host and _was_cut(error) and why_tls_failed(error) is None:
            await _read_alert(connection)
        raise
    finally:
        connecting.cancel()
        await asyncio.wait([connecting])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_of_a_file(error: BaseException) -> bool:
    """Return whether a file of the certificates cannot be read; no connection over TCP fails like this."""
    refused = isinstance(error, PermissionError) and error.errno == errno.EACCES
    return refused or isinstance(error, (FileNotFoundError, IsADirectoryError))


def _was_cut(error: BaseException) -> bool:
    """Return whether the connection was made, and then ended before the server had answered."""
    return "closed by server" in str(error) or any(
        isinstance(one, (ConnectionResetError, ConnectionAbortedError, BrokenPipeError))
        for one in _chain(error)
    )


def address_of(connection: AbstractConnection) -> tuple[str, int]:
    """Return where a connection leads; an empty name for a unix socket, and until Sentinels have named it."""
    return getattr(connection, "host", ""), getattr(connection, "port", 0)


async def _read_alert(connection: SSLConnection) -> None:
    """Connect again, and send nothing: after a command the server may cut the connection without an alert.

    Raise what the server says, if anything.
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(
                connection.host,
                connection.port,
                ssl=connection.ssl_context.get(),
            )
            with contextlib.closing(writer.transport):
                await reader.read(1)
    except TimeoutError:
        return


async def _said_at_first(connection: AbstractConnection) -> str:
    """Connect again, and send nothing; return why the server accepts no connection, if it says so."""
    path = getattr(connection, "path", "")
    if not (path or address_of(connection)[0]):
        return ""
    try:
        async with asyncio.timeout(FULL_SECONDS):
            reader, writer = await (
                asyncio.open_unix_connection(path)
                if path
                else asyncio.open_connection(*address_of(connection))
            )
            with contextlib.closing(writer.transport):
                said = (await reader.readline()).decode(errors="replace")
    except (OSError, TimeoutError, ValueError):
        return ""
    return said.strip().removeprefix("-ERR ") if IS_FULL in said else ""


async def _expects_tls(host: str, port: int) -> bool:
    """Return whether a port answers to a TLS handshake. Nothing else is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it speaks TLS, and does not accept this client
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


async def _answers_plainly(host: str, port: int) -> bool:
    """Return whether a server answers PING at a port without TLS, if only that it refuses it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer.transport):
                writer.write(b"*1\r\n$4\r\nPING\r\n")
                return await reader.read(1) in (b"+", b"-")
    except (OSError, TimeoutError):
        return False
