"""Opens a queue by its name alone, and finds those of a server, each with shards once."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from leasequeue.errors import AccessDenied, WrongKeyType
from leasequeue.keys import check_prefix
from leasequeue.queue.queue import AsyncWorkQueue, engine_of
from leasequeue.queue.shards.naming import shard_names
from leasequeue.queue.shards.queue import ShardedQueue
from leasequeue.queue.shards.spreading import MAX_SHARDS
from leasequeue.wire.discovery import FoundQueues, client_at, find_queues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.queue.shards.spreading import ShardBy
    from leasequeue.wire.endpoints import Client

#: What `open_shards` notes.
_LAYOUT = re.compile(rb"([1-9]\d{0,2}) (id|group)")
#: The name of a queue that may be a shard.
_SHARD = re.compile(r"\{([^{}]+?)(/\d+\.\d+)?\}")


class Layout(NamedTuple):
    """Over how many queues the items of a queue are spread, and by what."""

    shards: int
    shard_by: ShardBy


def layout_of(queue: AsyncWorkQueue) -> Layout | None:
    """Return the layout with which a queue was made; None: it has no shards."""
    by = queue._parts.by if isinstance(queue, ShardedQueue) else None  # noqa: SLF001 - they are its own
    return by and Layout(len(queue.shards), by)


async def open_queue(name: str, redis: Client, **how: Any) -> AsyncWorkQueue:
    """Make a queue, with as many shards as are noted for this name; without any, if there are none.

    A name with braces is that of one queue, which may be a shard of another one. If both are there, a queue
    with shards and one of the same name without, it is the former.

    Args:
        name: The queue's name.
        redis: See `AsyncWorkQueue`.
        how: The other arguments of `AsyncWorkQueue`.

    Raises:
        InvalidArgument: If an argument cannot be used.
        ServerError: If the server cannot be reached, or answers with an error. Where the access rules forbid
            to read the note, they forbid the queue with shards, and it is one without.
    """
    layouts = await _layouts_of([check_prefix(name)], redis, **how)
    return with_layout(name, redis, layouts.get(name), **how)


def with_layout(name: str, redis: Client, layout: Layout | None, **how: Any) -> AsyncWorkQueue:
    """Make a queue of which the layout is known; None: it has no shards."""
    return AsyncWorkQueue(name, redis, **how, **({} if layout is None else layout._asdict()))


async def find_whole_queues(
    server: Client | str, *, max_keys: int | None = None, max_queues: int | None = None
) -> FoundQueues:
    """Find the queues on a server as `find_queues` does; of a queue with shards, its name in their place.

    A name is that of a queue with shards only if these are noted: others may have queues that are called like
    shards. Such a name hides a queue without shards that is called the same.
    """
    client = await client_at(server) if isinstance(server, str) else server
    found, complete = await find_layouts(client, max_keys=max_keys, max_queues=max_queues)
    return FoundQueues([*found], complete)


async def find_layouts(
    client: Client,
    *,
    reply_timeout: float = 10.0,
    max_keys: int | None = None,
    max_queues: int | None = None,
) -> tuple[dict[str, Layout | None], bool]:
    """Find the queues as `find_whole_queues` does, each with its layout, and say whether these are all."""
    found = await find_queues(client, reply_timeout=reply_timeout, max_keys=max_keys, max_queues=max_queues)
    names = {*found.names}
    parts = [match for match in map(_SHARD.fullmatch, found.names) if match]
    likely = {match[0][1:-1] for match in parts} | {match[1] for match in parts}
    layouts: dict[str, Layout] = {}
    for whole, layout in (await _layouts_of(likely, client, reply_timeout=reply_timeout)).items():
        if names & (shards := {*shard_names(whole, layout.shards)}):
            names, layouts[whole] = names - shards | {whole}, layout
    wholes = sorted(names)[:max_queues]
    return {name: layouts.get(name) for name in wholes}, found.complete and len(wholes) == len(names)


async def _layouts_of(names: Iterable[str], redis: Client, **how: Any) -> dict[str, Layout]:
    """Return what is noted for these names, of those for which anything is."""
    async with AsyncExitStack() as stack:
        firsts: dict[str, AsyncWorkQueue] = {}
        for name in names:
            if "{" not in name and "}" not in name and len(name.encode()) <= 510:
                first = AsyncWorkQueue(f"{{{name}}}", redis, **how)
                firsts[name] = await stack.enter_async_context(first)
        layouts = await asyncio.gather(*map(_layout_of, firsts.values()))
    return {name: layout for name, layout in zip(firsts, layouts, strict=True) if layout is not None}


async def _layout_of(first: AsyncWorkQueue) -> Layout | None:
    key = engine_of(first).keys["shards"]
    [noted] = await engine_of(first).runner.ask((b"GET", key))
    if noted is None or isinstance(noted, (AccessDenied, WrongKeyType)):
        return None
    if isinstance(noted, Exception):
        raise noted
    if (match := _LAYOUT.fullmatch(noted)) is None or int(match[1]) > MAX_SHARDS:
        return None
    return Layout(int(match[1]), cast("ShardBy", match[2].decode()))
