"""A connection that receives one channel, in both ways of publishing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.exceptions import MovedError, NoPermissionError, ResponseError

from leasequeue.errors import ConnectionLost
from leasequeue.scripting.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.scripting.connection import Connection
    from leasequeue.scripting.session import Session

#: How often a connection is opened at once after another, on a cluster whose slots move.
MAX_MOVES = 5


async def open_channel(
    session: Session,
    purpose: str,
    channel: bytes,
    *,
    on_message: Callable[[bytes], None],
    on_end: Callable[[], None],
) -> Connection:
    """Open a connection that receives a channel; return when the server has confirmed.

    It receives what PUBLISH and what SPUBLISH publish: which is used depends on the server, and on the
    rights of the client that publishes. The caller closes it.

    Args:
        session: Whose connection it is.
        purpose: A word for its name.
        channel: The channel; it has the hash tag of the queue.
        on_message: Called for each message.
        on_end: Called when the connection has ended.

    Raises:
        ServerRefused: If the access rules forbid the channel.
        ConnectionLost, ServerBusy: If the server does not answer.
    """
    endpoint = session.endpoint(purpose)
    for _ in range(MAX_MOVES):
        connection = await session.open(
            purpose, reply_timeout=session.reply_timeout, on_end=on_end, pushes=True, endpoint=endpoint
        )
        try:
            await _subscribe(connection, channel, on_message)
        except MovedError as moved:
            await connection.close()
            await endpoint.moved(moved)
        except BaseException:
            await connection.close()
            raise
        else:
            return connection
    raise ConnectionLost("the channel has moved to other nodes again and again", maybe_applied=False)


async def _subscribe(connection: Connection, channel: bytes, on_message: Callable[[bytes], None]) -> None:
    for sharded in (True, False):
        confirmed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(_: Any, error: BaseException | None, done: asyncio.Future[Any] = confirmed) -> None:
            if not done.done():
                done.set_result(error)

        connection.subscribe(channel, on_message, on_reply, sharded=sharded)
        error = await confirmed
        if isinstance(error, MovedError):
            raise error
        if error is not None and not (sharded and _is_unknown(error)):
            raise translate(error, maybe_applied=False)


def _is_unknown(error: BaseException) -> bool:
    """Return whether the server does not know the command, as before Redis 7."""
    is_answer = isinstance(error, ResponseError) and not isinstance(error, NoPermissionError)
    return is_answer and "unknown command" in str(error)
