"""Asks who the primary is when a server was silent: another one may have taken its place.

A primary that was frozen does not know that. For up to ten seconds after it wakes it accepts writes, and they
are thrown away. So others are asked: the Sentinels, or the other nodes of the cluster. A single server is not
asked for its `ROLE`: it would say what it believes, and there are no others that know better.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio.sentinel import SentinelConnectionPool

from leasequeue.wire.nodes import ClusterNodes

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from leasequeue.wire.endpoints import OwnClient
    from leasequeue.wire.nodes import Address

#: For how long a Sentinel may be silent (s). It may be frozen, too.
SENTINEL_SECONDS = 1.0
#: How long to wait before the Sentinels are asked again, while they have not decided (s).
UNDECIDED_SECONDS = 0.1


def may_be_replaced(client: OwnClient) -> bool:
    """Return whether another server may become the primary, and others can say so."""
    return isinstance(client, ClusterNodes) or isinstance(client.connection_pool, SentinelConnectionPool)


async def is_primary(client: OwnClient, address: Address) -> bool:
    """Return whether a server is still the primary, or a master of the cluster, as others say.

    Wait while the Sentinels are about to replace it.

    Raises:
        ConnectionError: If no Sentinel answers.
        Exception: If no node of the cluster does: what the last one failed with.
    """
    if isinstance(client, ClusterNodes):
        return await client.serves(address)
    pool: Any = client.connection_pool
    manager: Any = pool.sentinel_manager
    while True:
        asked = [*manager.sentinels]
        answers = await asyncio.gather(*(_view_of(one, pool.service_name) for one in asked))
        if not any(answers):
            raise ConnectionError("no Sentinel answers")
        # One that was frozen or away as well may still have the view of before.
        newest = max(view["config-epoch"] for view in answers if view)
        best = [n for n, view in enumerate(answers) if view and view["config-epoch"] == newest]
        views = [answers[n] for n in best]
        # So that the next connection, too, asks one that knows: the first of the list.
        manager.sentinels[0], manager.sentinels[best[0]] = asked[best[0]], manager.sentinels[0]
        host = manager._force_master_ip or views[0]["ip"]  # noqa: SLF001 - there is no public way
        if (host, views[0]["port"]) != address:
            return False
        if not _undecided(views):
            return True
        await asyncio.sleep(UNDECIDED_SECONDS)


def _undecided(views: list[Any]) -> bool:
    """Return whether Sentinels are replacing the primary, or may begin to, as enough found it silent."""
    flags = [view["flags"] for view in views]
    down = sum("s_down" in one for one in flags)
    return down >= views[0]["quorum"] or any(
        "o_down" in one or "failover_in_progress" in one for one in flags
    )


async def _view_of(sentinel: Redis, name: str) -> Any:
    """Return what a Sentinel knows of the primary; None if it does not answer."""
    try:
        async with asyncio.timeout(SENTINEL_SECONDS):
            known: Any = await sentinel.sentinel_masters()
            return known.get(name)
    except Exception:  # noqa: BLE001 - the others are asked, too
        return None
