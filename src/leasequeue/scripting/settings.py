"""Connection settings of the user's client, as Leasequeue's own connections use them.

The user's connections resend commands by default, so that one `rpush` may push twice; Leasequeue's never do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Seconds to wait for a connection, unless the user's client has a limit.
CONNECT_SECONDS = 5.0

# Settings for the user's connections only: resending, decoding, and RESP3 notices.
_IGNORED = (
    "retry",
    "retry_on_timeout",
    "retry_on_error",
    "event_dispatcher",
    "himport_registry",
    "response_callbacks",
)
_IGNORED_PREFIXES = ("maint", "orig_", "oss_cluster")


def once_only(kwargs: dict[str, Any], *, pushes: bool) -> dict[str, Any]:
    """Return the user's connection settings, without resending and without time limits."""
    kept = {
        name: value
        for name, value in kwargs.items()
        if name not in _IGNORED and not name.startswith(_IGNORED_PREFIXES)
    }
    return kept | {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # each call has its deadline
        "socket_connect_timeout": kwargs.get("socket_connect_timeout") or CONNECT_SECONDS,
        "decode_responses": False,
        "health_check_interval": 0,
        "protocol": 3 if pushes else 2,
    }


def user_of(kwargs: Mapping[str, Any]) -> str:
    """Return the name with which connections log in."""
    return str(kwargs.get("username") or "default")
