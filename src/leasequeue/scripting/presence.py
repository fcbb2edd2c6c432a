"""Which connections a server has, by their ids: a connection is there exactly as long as its process lives.

When a process dies, its system closes its connections, and the server notices within milliseconds. Ids begin
anew when a server starts, so that an id means something only together with the server's run id.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from leasequeue.scripting.session import Session

_ID = re.compile(rb"\bid=(\d+) ")
_NAME = re.compile(rb" name=(\S*)")
_RUN_ID = re.compile(rb"^run_id:(\w+)\r?$", re.MULTILINE)


class CannotAsk(Exception):
    """The server, or a proxy in front of it, does not say which connections it has.

    It never leaves the worker: see `worker.connections`.
    """


class Presence(NamedTuple):
    """What a server has answered."""

    #: The connections that it has, of those asked for: id → name.
    names: Mapping[int, str]
    #: The run id of the server; None if it was not asked for.
    server: str | None
    #: The number of subscribers of each channel that was asked for.
    subscribers: Mapping[bytes, int]


async def present(
    session: Session, ids: Iterable[int], *, identify: bool = False, channels: Sequence[bytes] = ()
) -> Presence:
    """Ask the server of a session which of some connections it has.

    All answers are those of one server at one moment: they arrive over one connection.

    Args:
        session: A session of the running event loop.
        ids: The ids of the connections.
        identify: Whether to ask for the server's run id as well.
        channels: Channels whose subscribers to count as well.

    Raises:
        CannotAsk: If the access rules forbid it, or the answers are not those of a Redis server.
        ConnectionLost, ServerBusy, ServerRefused: If the server cannot be reached.
    """
    commands = [(b"CLIENT", b"LIST", b"ID", *(b"%d" % one for one in ids))]
    if identify:
        commands.append((b"INFO", b"server"))
    if channels:
        commands.append((b"PUBSUB", b"NUMSUB", *channels))
    replies = await session.runner.ask(*commands)
    for (name, *_), reply in zip(commands, replies, strict=True):
        if isinstance(reply, BaseException):
            await _raise(session, name, reply)
    listed, *others = replies
    server = _server(others.pop(0)) if identify else None
    subscribers = _subscribers(others[0], len(channels)) if channels else {}
    return Presence(_names(listed), server, subscribers)


async def _raise(session: Session, command: bytes, error: BaseException) -> None:
    """Raise the error, as one that says whether only this command was refused."""
    [pong] = await session.runner.ask((b"PING",))
    if isinstance(pong, BaseException):
        raise pong  # nothing can be asked now
    raise CannotAsk(f"{command.decode()} is refused: {error}") from error


def _names(listed: object) -> dict[int, str]:
    """Return the connections of a reply to CLIENT LIST."""
    names: dict[int, str] = {}
    if not isinstance(listed, bytes):
        raise CannotAsk(f"CLIENT LIST is answered with {type(listed).__name__}")
    for line in listed.splitlines():
        found, name = _ID.search(line), _NAME.search(line)
        if line and (found is None or name is None):
            raise CannotAsk("CLIENT LIST is answered in an unknown form")
        if found is not None and name is not None:
            names[int(found[1])] = name[1].decode(errors="replace")
    return names


def _server(info: object) -> str:
    found = _RUN_ID.search(info) if isinstance(info, bytes) else None
    if found is None:
        raise CannotAsk("INFO does not name the server")
    return found[1].decode()


def _subscribers(counted: object, channels: int) -> dict[bytes, int]:
    if isinstance(counted, list) and len(counted) == 2 * channels:
        found = dict(zip(counted[::2], counted[1::2], strict=True))
        if all(isinstance(count, int) for count in found.values()):
            return found
    raise CannotAsk("PUBSUB NUMSUB is answered in an unknown form")
