"""Finds the queues on a server by their keys, for the command line.

The server holds no list of queues, so all keys are scanned in steps (SCAN).
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from leasehold.keys import FAMILIES
from leasehold.scripting.endpoints import client_of
from leasehold.scripting.server_errors import translate

if TYPE_CHECKING:
    from redis.asyncio import Redis

#: Keys scanned in one step, and in all.
STEP_KEYS = 1_000
MAX_KEYS = 2_000_000
#: The maximum number of queues to return.
MAX_QUEUES = 1_000

#: The suffixes of the keys that identify a queue, and the types of their values.
_KNOWN_BY = {
    b"queue": b"list",
    b"processing": b"list",
    b"scheduled": b"zset",
    b"dead": b"zset",
    b"schedules": b"hash",
    b"fence": b"string",
}
#: One pattern for all of them, so that the keys are scanned once. Other matches are discarded.
_PATTERN = b"*:[dfpqs][cenru]*[degs]"
#: Keys of single items, sessions and so on, whose names may end with one of the suffixes.
_OF_ONE = re.compile(f":(?:{'|'.join({*FAMILIES, 'inbox'})}):".encode())


class FoundQueues(NamedTuple):
    """The result of `find_queues`."""

    #: The names of the queues, sorted.
    names: list[str]
    #: Whether all keys were scanned; False: there may be more queues.
    complete: bool


async def find_queues(url: str, *, reply_timeout: float = 10.0, max_keys: int = MAX_KEYS) -> FoundQueues:
    """Find the queues on a server, including empty ones from which items have been leased.

    Args:
        url: Where the server is.
        reply_timeout: Seconds to wait for each reply.
        max_keys: The maximum number of keys to scan.

    Raises:
        InvalidArgument: If the URL cannot be parsed.
        ServerError: If the server cannot be reached, or answers with an error.
    """
    client = client_of(url)
    client.set_retry(Retry(NoBackoff(), 0))
    names: set[bytes] = set()
    cursor, seen = 0, 0
    try:
        while True:
            async with asyncio.timeout(reply_timeout):
                cursor, keys = await client.scan(cursor, match=_PATTERN, count=STEP_KEYS)
                names |= await _names_of(client, [key for key in keys if isinstance(key, bytes)])
            seen += STEP_KEYS
            if cursor == 0 or seen >= max_keys or len(names) > MAX_QUEUES:
                break
    except (RedisError, OSError, EOFError) as error:
        raise translate(error, maybe_applied=False) from error
    finally:
        await client.aclose()
    found = sorted(filter(None, map(_text, names)))
    return FoundQueues(found[:MAX_QUEUES], cursor == 0 and len(found) <= MAX_QUEUES)


async def _names_of(client: Redis, keys: list[bytes]) -> set[bytes]:
    """Return the names of the queues that the keys belong to."""
    likely = [
        (name, key, _KNOWN_BY[ending])
        for key in keys
        for name, _, ending in [key.rpartition(b":")]
        if ending in _KNOWN_BY and not _OF_ONE.search(key)
    ]
    if not likely:
        return set()
    async with client.pipeline(transaction=False) as pipe:
        for _, key, _ in likely:
            pipe.type(key)
        kinds: list[Any] = await pipe.execute()
    return {name for (name, _, wanted), kind in zip(likely, kinds, strict=True) if kind == wanted}


def _text(name: bytes) -> str | None:
    """Return a name as text; None if it is not UTF-8, so that it cannot be a queue's."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return None
