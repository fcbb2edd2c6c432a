"""Asks who the primary is when a server was silent: another one may have taken its place.

A primary that was frozen does not know that. For up to ten seconds after it wakes it accepts writes, and they
are thrown away. So others are asked: the Sentinels, or the other nodes of the cluster. A single server is not
asked for its `ROLE`: it would say what it believes, and there are no others that know better.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool
from redis.exceptions import AuthenticationError

from leasequeue.wire.nodes import ClusterNodes
from leasequeue.wire.server_errors import is_lost

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio import Redis

    from leasequeue.wire.nodes import Address

#: For how long a Sentinel may be silent (s). It may be frozen, too.
SENTINEL_SECONDS = 1.0
#: For how long a further Sentinel is waited for where one has named a primary (s): it may know a newer one.
OTHERS_SECONDS = 0.1
#: How long to wait before the Sentinels are asked again, while they have not decided (s).
UNDECIDED_SECONDS = 0.1


def may_be_replaced(client: Redis | ClusterNodes) -> bool:
    """Return whether another server may become the primary, and others can say so."""
    return isinstance(client, ClusterNodes) or isinstance(client.connection_pool, SentinelConnectionPool)


async def find_primary(manager: Any, name: str) -> Address:
    """Return where the Sentinels of a manager of redis-py say that a primary is.

    redis-py asks one after the other, so that one which is away uses up the time that a connection may take,
    and two callers at once would lose it one from its list. Here, all are asked at once.

    Raises:
        MasterNotFoundError: If none says; the text has their errors.
        RedisError: If all refuse the question.
    """
    views: list[Any] = []
    errors: dict[Redis, Exception] = {}

    async def ask(sentinel: Redis) -> None:
        try:
            known: Any = await sentinel.sentinel_masters()
        except Exception as error:  # noqa: BLE001 - the others are asked, too
            errors[sentinel] = error
        else:
            views.extend([known[name]] if name in known else [])

    asking = [asyncio.create_task(ask(one)) for one in manager.sentinels]
    within, pending = None, {*asking}
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            if views:
                is_known = any(manager.check_master_state(view, name) for view in views)
                within = OTHERS_SECONDS if is_known else SENTINEL_SECONDS
    finally:
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    for view in _newest(views):
        if manager.check_master_state(view, name):
            return _address_in(manager, view)
    raise _why_unknown(manager, name, errors)


def _why_unknown(manager: Any, name: str, errors: Mapping[Redis, Exception]) -> Exception:
    """Return the error for Sentinels that do not say where a primary is, some with an error."""
    if errors and len(errors) == len(manager.sentinels) and not any(map(is_lost, errors.values())):
        error = next(iter(errors.values()))
        if isinstance(error, AuthenticationError):
            return AuthenticationError(f"{error} (of the Sentinels: see `sentinel_kwargs`)")
        return error
    said = ", ".join(f"{sentinel} - {error!r}" for sentinel, error in errors.items())
    return MasterNotFoundError(f"No master found for {name!r}{said and f' : {said}'}")


async def is_primary(client: Redis | ClusterNodes, address: Address) -> bool:
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
        answers = await asyncio.gather(*(_view_of(one, pool.service_name) for one in manager.sentinels))
        if not any(answers):
            raise ConnectionError("no Sentinel answers")
        views = _newest([view for view in answers if view])
        if _address_in(manager, views[0]) != address:
            return False
        if not _undecided(views):
            return True
        await asyncio.sleep(UNDECIDED_SECONDS)


def _newest(views: list[Any]) -> list[Any]:
    """Return the newest views: one that was frozen or away as well may still have that of before."""
    newest = max((view["config-epoch"] for view in views), default=0)
    return [view for view in views if view["config-epoch"] == newest]


def _address_in(manager: Any, view: Any) -> Address:
    host = manager._force_master_ip  # noqa: SLF001 - there is no public way
    return view["ip"] if host is None else host, view["port"]


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
