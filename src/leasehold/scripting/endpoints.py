"""How to reach the server of a queue, whatever client the user has: one node, Sentinel, or a cluster.

We take from the user's client where the server is and how to log in, and nothing else: its connections
resend commands by default (one `rpush` then pushes twice), ours never do.
"""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.backoff import NoBackoff

from leasehold.errors import InvalidArgument
from leasehold.scripting.urls import check_url, refusal

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

#: The clients of redis-py that a queue can be given.
Client = Redis | RedisCluster
_Client = TypeVar("_Client", Redis, RedisCluster)

#: Seconds to wait for a connection, where the user's client does not say.
CONNECT_SECONDS = 5.0

# What concerns the user's own connections only: their resending, decoding, and RESP3 notices.
_NOT_OURS = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "event_dispatcher",
    "himport_registry",
    "response_callbacks",
)
_NOT_OURS_PREFIXES = ("maint", "orig_", "oss_cluster")


class Endpoint(Protocol):
    """Where to open connections for one queue."""

    async def connection(self, *, pushes: bool) -> AbstractConnection:
        """A new connection, not yet open, that sends each command once.

        Args:
            pushes: Whether it can be told things beside its replies (RESP3).
        """
        ...

    async def moved(self) -> None:
        """The server told us that the queue lives elsewhere now: find out where."""
        ...


class PoolEndpoint:
    """One server, over TCP, TLS or a unix socket, or the primary that Sentinel names."""

    def __init__(self, client: Redis) -> None:
        self._pool = client.connection_pool

    async def connection(self, *, pushes: bool) -> AbstractConnection:
        """See `Endpoint`."""
        return self._pool.connection_class(**once_only(self._pool.connection_kwargs, pushes=pushes))

    async def moved(self) -> None:
        """See `Endpoint`. A single server does not move its keys; a new connection is all there is to do."""


class ClusterEndpoint:
    """The node of a cluster that owns the slot of a queue."""

    def __init__(self, client: RedisCluster, key: bytes) -> None:
        self._client = client
        self._key = key

    async def connection(self, *, pushes: bool) -> AbstractConnection:
        """See `Endpoint`."""
        await self._client.initialize()
        node = self._client.get_node_from_key(self._key.decode())
        if node is None:
            raise ConnectionError("no node of the cluster owns the slot of this queue")
        return node.connection_class(**once_only(node.connection_kwargs, pushes=pushes))

    async def moved(self) -> None:
        """See `Endpoint`."""
        await self._client.nodes_manager.initialize()


def once_only(kwargs: dict[str, Any], *, pushes: bool) -> dict[str, Any]:
    """The user's connection settings, made to send each command once and to wait as long as we say."""
    kept = {
        name: value
        for name, value in kwargs.items()
        if name not in _NOT_OURS and not name.startswith(_NOT_OURS_PREFIXES)
    }
    return kept | {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # each call has a deadline of its own
        "socket_connect_timeout": kwargs.get("socket_connect_timeout") or CONNECT_SECONDS,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 3 if pushes else 2,
    }


def endpoint_of(client: object, key: bytes) -> Endpoint:
    """Choose the endpoint for the user's client.

    Raises:
        InvalidArgument: If it is no asyncio client of redis-py.
    """
    if isinstance(client, RedisCluster):
        return ClusterEndpoint(client, key)
    if isinstance(client, Redis):
        return PoolEndpoint(client)
    raise InvalidArgument("redis", client, "a redis.asyncio.Redis or redis.asyncio.RedisCluster")


def is_cluster(client: object) -> bool:
    """Whether the user's client speaks to a cluster."""
    return isinstance(client, RedisCluster)


def client_of(url: str) -> Redis:
    """A client for a URL (`redis://`, `rediss://`, `unix://`).

    Raises:
        InvalidArgument: If the URL cannot be read, or has parameters that nobody knows; it shows no password.
    """
    return _from_url(Redis, url)


def cluster_of(url: str) -> RedisCluster:
    """A client for a cluster, of which one node is at a URL. It connects when it is first used.

    Raises:
        InvalidArgument: If the URL cannot be read, or has parameters that nobody knows; it shows no password.
    """
    return _from_url(RedisCluster, url)


def _from_url(kind: type[_Client], url: str) -> _Client:
    check_url(url, cluster=issubclass(kind, RedisCluster))
    try:
        return kind.from_url(url)
    except (TypeError, ValueError):
        pass  # its text may hold the password; raised below, ours does not even know of it
    raise refusal(url)


def twin_of(client: Client) -> Client:
    """A client of the same server that can be used in another event loop.

    It is the same one where we only read from it where the server is. Those that find that out over
    connections of their own cannot be shared.
    """
    if isinstance(client, RedisCluster):
        accepted = inspect.signature(RedisCluster).parameters
        kwargs = {
            name: value
            for name, value in client.connection_kwargs.items()
            if name in accepted and name not in ("host", "port", "retry")
        }
        encrypted = issubclass(client.connection_kwargs.get("connection_class", Connection), SSLConnection)
        nodes = [ClusterNode(node.host, node.port) for node in client.nodes_manager.startup_nodes.values()]
        return RedisCluster(
            startup_nodes=nodes,
            ssl=encrypted,
            require_full_coverage=client.nodes_manager.require_full_coverage,
            address_remap=client.nodes_manager.address_remap,
            **kwargs,
        )
    pool = client.connection_pool
    if not isinstance(pool, SentinelConnectionPool):
        return client
    sentinel = copy.copy(pool.sentinel_manager)
    sentinel.sentinels = [
        Redis.from_pool(
            ConnectionPool(one.connection_pool.connection_class, **one.connection_pool.connection_kwargs)
        )
        for one in pool.sentinel_manager.sentinels
    ]
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


async def close_client(client: Client) -> None:
    """Close a client that is ours, and what it asks for the server."""
    await client.aclose()
    pool = client.connection_pool if isinstance(client, Redis) else None
    if isinstance(pool, SentinelConnectionPool):
        for one in pool.sentinel_manager.sentinels:
            await one.aclose()


def url_of(client: object) -> str | None:
    """A URL by which another process reaches the same server, without the password; None for a cluster."""
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
