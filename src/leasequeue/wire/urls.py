"""Checks the URLs of servers. An error shows no part of a URL that could be a password."""

from __future__ import annotations

import difflib
import inspect
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The port of a server whose URL names none.
DEFAULT_PORT = 6379
#: The schemes, and the class that connects by each.
_SCHEMES = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}
_ALLOWED = "a redis://, rediss:// or unix:// URL"
_READABLE = f"{_ALLOWED} whose port is a number and whose login has special characters as %XX"
_ONE_HOST = f"{_ALLOWED} with one host; only with cluster=True several, as in redis://HOST:PORT,HOST:PORT"
_VALUES = f"{_ALLOWED} whose parameters have values of the right types"
# Parameters of redis-py that cannot be given as text.
_NO_TEXT = (
    "self",
    "address_remap",
    "credential_provider",
    "driver_info",
    "encoder_class",
    "event_dispatcher",
    "himport_registry",
    "load_balancing_strategy",
    "parser",
    "parser_class",
    "policy_resolver",
    "redis_connect_func",
    "retry",
    "retry_on_error",
    "socket_keepalive_options",
    "socket_type",
    "ssl",
    "startup_nodes",
)
_NO_TEXT_PREFIXES = ("maint", "orig_", "oss_cluster")


def holds_login(url: str) -> bool:
    """Return whether a URL could contain a password. The URL need not be valid."""
    _, _, query = url.partition("?")
    return "@" in url or any("pass" in name.lower() for name, _ in _parameters(query))


def refusal(url: str, allowed: str = _VALUES) -> InvalidArgument:
    """Return the error for an invalid URL. Of the URL it shows the scheme only.

    In a text that cannot be parsed, the login could be anywhere.
    """
    scheme, there, _ = url.partition("://")
    known = there and re.fullmatch(r"[a-z][a-z0-9+.-]{0,15}", scheme)
    return InvalidArgument("url", f"{scheme}://…" if known else "…", allowed)


def check_url(url: object, *, cluster: bool) -> str:
    """Return a URL if it can be parsed and all its parameters are known.

    The error shows no password, and has no cause that could.
    """
    if not isinstance(url, str):
        raise InvalidArgument("url", type(url), _ALLOWED)
    scheme = url.partition("://")[0].lower()
    if "://" not in url or scheme not in _SCHEMES:
        raise refusal(url, _ALLOWED)
    one, *others = url_of_each(url)
    query = _query_of(one)
    if query is None or (others and not all(map(_is_host, (one, *others)))):
        raise refusal(url, _READABLE)
    if others and not cluster:
        raise refusal(url, _ONE_HOST)
    if not query:
        return url
    known = {*_accepted(RedisCluster if cluster else _SCHEMES[scheme])}
    if not cluster:
        known |= {"max_connections"} & {*_accepted(ConnectionPool)}
    for name, _ in _parameters(query):
        if name not in known:
            raise refusal(url, _wanted(url, name, known))
    return url


def url_of_each(url: str) -> list[str]:
    """Return the URLs of the nodes that a URL names, `redis://USER:PASSWORD@HOST:PORT,HOST:PORT/?…`.

    The first one alone has the login and the parameters. The URL need not be valid.
    """
    scheme, _, rest = url.partition("://")
    end = min((found for sign in "/?#" if (found := rest.find(sign)) >= 0), default=len(rest))
    login, at, hosts = rest[:end].rpartition("@")
    first, *others = hosts.split(",")
    return [f"{scheme}://{login}{at}{first}{rest[end:]}", *(f"{scheme}://{other}" for other in others)]


def address_in(url: str) -> tuple[str, int]:
    """Return the host and the port of a valid URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or DEFAULT_PORT


def _is_host(url: str) -> bool:
    return _query_of(url) is not None and bool(address_in(url)[0].strip())


def _query_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number
    except ValueError:
        return None
    return parts.query


def _parameters(query: str) -> list[tuple[str, str]]:
    return parse_qsl(query, keep_blank_values=True)


def _accepted(kind: type) -> Iterator[str]:
    """Yield the names of the parameters that a URL can set for a class of redis-py."""
    for one in kind.__mro__[:-1]:
        for name, parameter in inspect.signature(one.__init__).parameters.items():  # type: ignore[misc]  # read only
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            if named and name not in _NO_TEXT and not name.startswith(_NO_TEXT_PREFIXES):
                yield name


def _wanted(url: str, name: str, known: set[str]) -> str:
    """Describe an unknown parameter. If the URL contains a login, its name may be a part of that."""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1)
    if close:
        return f"{_ALLOWED} with parameters that are known (did you mean {close[0]!r}?)"
    shown = f"{name!r} is not" if name.isidentifier() and not holds_login(url) else "one is not"
    return f"{_ALLOWED} with parameters that are known: {shown}"
