"""Finds the server of a queue through the user's client: a single node, Sentinel, or a cluster.

Only the address and the login are taken from the user's client. Its connections resend commands by default,
so that one `rpush` may push twice; Leasequeue's never do.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.crc import key_slot

from leasequeue.durations import check_bool
from leasequeue.errors import ConnectionLost, InvalidArgument
from leasequeue.wire.connection import once_only
from leasequeue.wire.nodes import ClusterNodes
from leasequeue.wire.primaries import find_primary
from leasequeue.wire.urls import address_in, check_url, refusal, url_of_each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio.connection import AbstractConnection

    from leasequeue.wire.nodes import Address

#: The clients of redis-py that a queue can be given.
Client = Redis | RedisCluster
#: What finds their server in one event loop: see `separate_client`.
OwnClient = Redis | ClusterNodes
_Client = TypeVar("_Client", Redis, RedisCluster)


def new_connection(client: OwnClient, address: Address | None, *, pushes: bool) -> AbstractConnection:
    """Return a new connection, not yet open, that sends each command once.

    `address` is the node of a cluster. With `pushes`, it receives these (RESP3).
    """
    if isinstance(client, ClusterNodes):
        if address is None:
            raise ConnectionLost("the node of the cluster is not known yet", maybe_applied=False)
        return _connection_to(client.node(address), pushes=pushes)
    pool = client.connection_pool
    kwargs = once_only(pool.connection_kwargs, pushes=pushes)
    if isinstance(pool, SentinelConnectionPool):
        # Until the Sentinels have named it; otherwise it would be the default of redis-py, `localhost:6379`.
        kwargs |= {"host": "", "port": 0}
    return pool.connection_class(**kwargs)


def _connection_to(node: ClusterNode, *, pushes: bool) -> AbstractConnection:
    return node.connection_class(**once_only(node.connection_kwargs, pushes=pushes))


def check_client(client: object) -> None:
    """Refuse a user's client that is no asyncio client of redis-py."""
    if not isinstance(client, (Redis, RedisCluster)):
        raise InvalidArgument("redis", client, "a redis.asyncio.Redis or redis.asyncio.RedisCluster")


def same_server(one: Client, other: Client) -> bool:
    """Return whether two clients lead to the same server, and log in there in the same way.

    They do if their URLs or their arguments are equal. Other objects among these, such as the providers of
    logins, are equal if they say so.
    """
    return one is other or (type(one) is type(other) and _address_of(one) == _address_of(other))


def _address_of(client: Client) -> tuple[Any, ...]:
    """Return all that the connections of a client differ in from those of another one."""
    if isinstance(client, RedisCluster):
        nodes = client.nodes_manager
        named = {(node.host, int(node.port)) for node in nodes.startup_nodes.values()}
        return named, nodes.address_remap, _login(client.connection_kwargs)
    pool = client.connection_pool
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    if not isinstance(pool, SentinelConnectionPool):
        return pool.connection_class, _login(kwargs)
    sentinels = [_address_of(one) for one in pool.sentinel_manager.sentinels]
    return pool.connection_class, pool.service_name, pool.is_master, sentinels, _login(kwargs)


def _login(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in once_only(kwargs, pushes=False).items() if name != "retry"}


def slot_of(client: Client, key: bytes) -> int | None:
    """Return the slot of a key, if the client is one of a cluster: its queues may be on different nodes."""
    return key_slot(key) if isinstance(client, RedisCluster) else None


def is_cluster(client: object) -> bool:
    """Return whether the user's client is one of a cluster."""
    return isinstance(client, RedisCluster)


def client_named(url: str, *, cluster: bool = False) -> Client:
    """Make a client for a URL: for a cluster if it names several nodes, or if that is known."""
    return client_for(url, "", cluster=cluster or len(url_of_each(url)) > 1)


def client_of(url: str) -> Redis:
    """Make a client for a URL (`redis://`, `rediss://`, `unix://`).

    An error shows no password.
    """
    return _from_url(Redis, url)


def client_for(url: str, name: str, *, cluster: bool) -> Client:
    """Make a client for a queue from a URL; of a cluster, it names some nodes. It connects when first used.

    If the name is the URL, the error says this.
    """
    given = [isinstance(one, str) and "://" in one for one in (url, name)]
    if given == [False, True]:
        raise refusal("", "the URL first, then the queue's name")
    return _from_url(RedisCluster, url) if check_bool("cluster", cluster) else _from_url(Redis, url)


def _from_url(kind: type[_Client], url: str) -> _Client:
    check_url(url, cluster=issubclass(kind, RedisCluster))
    first, *others = url_of_each(url)
    nodes: dict[str, Any] = (
        {"startup_nodes": [ClusterNode(*address_in(other)) for other in others]} if others else {}
    )
    try:
        return kind.from_url(first, **nodes)
    except (TypeError, ValueError):
        pass  # its text may contain the password, so ours is raised below, without it as the context
    raise refusal(url)


def separate_client(client: Client) -> OwnClient:
    """Return what finds the same server for one event loop alone.

    It is the same client if only its settings are read. Clients of Sentinel use connections to find the
    server, and these belong to one event loop and to one process.
    """
    if isinstance(client, RedisCluster):
        return ClusterNodes(client)
    pool = client.connection_pool
    if not isinstance(pool, SentinelConnectionPool):
        return client
    sentinel: Any = copy.copy(pool.sentinel_manager)
    sentinel.sentinels = [_client_of_sentinel(one.connection_pool) for one in sentinel.sentinels]
    if type(sentinel).discover_master is Sentinel.discover_master:  # a program's own may translate addresses
        sentinel.discover_master = partial(find_primary, sentinel)
    kwargs = {name: value for name, value in pool.connection_kwargs.items() if name != "connection_pool"}
    return Redis.from_pool(
        SentinelConnectionPool(  # type: ignore[no-untyped-call]  # theirs has no types
            pool.service_name,
            sentinel,
            connection_class=pool.connection_class,
            is_master=pool.is_master,
            **kwargs,
        )
    )


def _client_of_sentinel(pool: ConnectionPool) -> Redis:
    """Return a client of a Sentinel which does not try again: the others are asked, too."""
    kwargs = {**pool.connection_kwargs, "retry": Retry(NoBackoff(), 0)}
    return Redis.from_pool(ConnectionPool(pool.connection_class, **kwargs))


def user_of(client: OwnClient) -> str:
    """Return the name with which connections log in."""
    kwargs = (
        client.connection_pool.connection_kwargs if isinstance(client, Redis) else client.connection_kwargs
    )
    return str(kwargs.get("username") or "default")


async def connections_to_all(client: OwnClient) -> list[AbstractConnection]:
    """Return a new connection, not yet open, to each server that holds keys: of a cluster, each master."""
    if isinstance(client, ClusterNodes):
        return [_connection_to(node, pushes=False) for node in await client.masters()]
    return [new_connection(client, None, pushes=False)]


async def close_client(client: OwnClient | Client) -> None:
    """Close a client that Leasequeue has made, with its clients of Sentinels."""
    if isinstance(client, ClusterNodes):
        return  # it keeps no connections
    await client.aclose()
    pool = client.connection_pool if isinstance(client, Redis) else None
    if isinstance(pool, SentinelConnectionPool):
        for one in pool.sentinel_manager.sentinels:
            await one.aclose()


def url_of(client: object) -> str | None:
    """Return a URL of the same server for other processes, without the password; None for a cluster."""
    if not isinstance(client, Redis):
        return None
    kwargs = client.connection_pool.connection_kwargs
    database = kwargs.get("db") or 0
    if "path" in kwargs:
        return f"unix://{kwargs['path']}?db={database}"
    if "host" not in kwargs:
        return None
    scheme = "rediss" if "ssl" in client.connection_pool.connection_class.__name__.lower() else "redis"
    return f"{scheme}://{kwargs['host']}:{kwargs.get('port', 6379)}/{database}"
