"""Finds the queues on a server by their keys, and whether it is a node of a cluster.

The server holds no list of queues, so all keys are scanned in steps (SCAN).
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from leasequeue.errors import InvalidArgument, ServerRefused
from leasequeue.keys import FAMILIES, check_prefix, hash_tag
from leasequeue.wire.endpoints import (
    Client,
    check_client,
    client_named,
    close_client,
    connections_to_all,
    is_cluster,
    new_connection,
    separate_client,
)
from leasequeue.wire.server_errors import translate
from leasequeue.wire.tls import connect

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

#: Keys scanned in one step, and in all.
STEP_KEYS = 1_000
MAX_KEYS = 2_000_000
#: The maximum number of queues to return.
MAX_QUEUES = 1_000

#: The suffixes of the keys that identify a queue, and the types of their values.
KNOWN_BY = {
    b"queue": b"list",
    b"processing": b"list",
    b"scheduled": b"zset",
    b"dead": b"zset",
    b"schedules": b"hash",
    b"fence": b"string",
    b"control": b"hash",
    b"lanes": b"zset",
    b"held": b"list",
    b"workers": b"hash",
}
#: One pattern for all of them, so that the keys are scanned once. Other matches are discarded.
_PATTERN = b"*:[cdfhlpqsw][acenoru]*[degls]"
#: Keys of single items, sessions and so on, whose names may end with one of the suffixes.
_OF_ONE = re.compile(f":(?:{'|'.join({*FAMILIES, 'inbox'})}):".encode())
#: What the names of the shards of a queue differ in: see `leasequeue.queue.shards.naming`.
_PLACE = re.compile(rb"/\d+\.\d+\}$")


class FoundQueues(NamedTuple):
    """The result of `find_queues`."""

    #: The names of the queues, sorted.
    names: list[str]
    #: Whether all keys were scanned; False: there may be more queues.
    complete: bool


async def client_at(url: str, *, reply_timeout: float = 10.0) -> Client:
    """Make a client for a URL: for a cluster if it names several nodes, or if its server is one of them.

    Raises:
        ServerRefused: If a Sentinel answers.
        ServerError: If the server cannot be reached or refuses.
    """
    client = client_named(url)
    if not isinstance(client, Redis) or (mode := await _mode_of(client, reply_timeout)) == b"standalone":
        return client
    await close_client(client)
    if mode == b"sentinel":
        raise ServerRefused(
            "the URL is that of a Sentinel, which holds no queues: give that of the primary, which "
            "`SENTINEL GET-MASTER-ADDR-BY-NAME` names; nothing was applied"
        )
    return client_named(url, cluster=True)


async def _mode_of(client: Redis, reply_timeout: float) -> bytes:
    """Return what a server says that it is: `standalone`, `cluster` or `sentinel`."""
    connection = new_connection(client, None, pushes=False)
    try:
        async with asyncio.timeout(reply_timeout):
            await connect(connection)
            [answer] = await _ask(connection, [(b"HELLO",)])
    except ResponseError:  # a proxy that does not know the command
        return b"standalone"
    except (RedisError, OSError, EOFError) as error:
        raise translate(error, maybe_applied=False) from error
    finally:
        await connection.disconnect(nowait=True)
    mode: bytes = dict(zip(answer[::2], answer[1::2], strict=True)).get(b"mode", b"standalone")
    return mode


async def find_queues(
    server: Client | str,
    *,
    prefix: str = "",
    reply_timeout: float = 10.0,
    max_keys: int | None = None,
    max_queues: int | None = None,
) -> FoundQueues:
    """Find the queues on a server, including empty ones from which items have been leased.

    Of a client, the address and the login are used; for a URL, see `client_at`. Of a cluster, all nodes are
    scanned, about `max_keys` keys on each, and names without a hash tag are none of queues. At most
    `max_queues` names are returned, of which those count once that differ as those of shards do.
    """
    if not isinstance(server, str):
        check_client(server)
    given = await client_at(server, reply_timeout=reply_timeout) if isinstance(server, str) else server
    client = separate_client(given)
    names: set[bytes] = set()
    complete = True
    try:
        async with asyncio.timeout(reply_timeout):
            connections = await connections_to_all(client)
        for connection in connections:
            try:
                complete &= await _scan(connection, names, prefix, reply_timeout, (max_keys, max_queues))
            finally:
                await connection.disconnect()
    except (RedisError, OSError, EOFError) as error:
        raise translate(error, maybe_applied=False) from error
    finally:
        if client is not server:
            await close_client(client)
    found = {
        name: text for name in names if (text := _text(name)) and (hash_tag(text) or not is_cluster(given))
    }
    wholes = sorted({*map(_whole, found)})
    wanted = {*wholes[:max_queues]}
    return FoundQueues(
        sorted(text for name, text in found.items() if _whole(name) in wanted),
        complete and len(wanted) == len(wholes),
    )


async def _scan(
    connection: AbstractConnection,
    names: set[bytes],
    prefix: str,
    reply_timeout: float,
    limits: tuple[int | None, int | None],
) -> bool:
    """Add the names of the queues on a node to `names`; return whether all of its keys were scanned."""
    max_keys, max_queues = limits
    pattern = re.sub(rb"([\\*?\[\]])", rb"\\\1", prefix.encode()) + _PATTERN
    cursor, seen = b"0", 0
    while True:
        async with asyncio.timeout(reply_timeout):
            if not connection.is_connected:
                await connect(connection)
            page = await _ask(connection, [(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % STEP_KEYS)])
            cursor, keys = page[0]
            names |= await _names_of(connection, keys)
        seen += STEP_KEYS
        if cursor == b"0":
            return True
        if (max_keys and seen >= max_keys) or (max_queues and len({*map(_whole, names)}) > max_queues):
            return False


async def _names_of(connection: AbstractConnection, keys: list[bytes]) -> set[bytes]:
    likely = [
        (name, key, KNOWN_BY[ending])
        for key in keys
        for name, _, ending in [key.rpartition(b":")]
        if ending in KNOWN_BY and not _OF_ONE.search(key)
    ]
    kinds = await _ask(connection, [(b"TYPE", key) for _, key, _ in likely])
    return {name for (name, _, wanted), kind in zip(likely, kinds, strict=True) if kind == wanted}


async def _ask(connection: AbstractConnection, commands: list[tuple[bytes, ...]]) -> list[Any]:
    await connection.send_packed_command(connection.pack_commands(commands))
    return [await connection.read_response() for _ in commands]


def _whole(name: bytes) -> bytes:
    """Return a name, or what is that of the first shard if it is the name of one."""
    return _PLACE.sub(b"}", name)


def _text(name: bytes) -> str | None:
    """Return a name as text; None if it cannot be a queue's: another program has made the key."""
    try:
        return check_prefix(name.decode())
    except (UnicodeDecodeError, InvalidArgument):
        return None
