"""Translates errors of the server and of redis-py into those of `leasequeue.errors`."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import TYPE_CHECKING

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from leasequeue.errors import (
    AccessDenied,
    ConnectionLost,
    DatabaseMissing,
    FormatTooNew,
    LeasequeueError,
    LimitExceeded,
    LoginRefused,
    QueueDeleted,
    ScriptFailed,
    ServerBusy,
    ServerError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    TooManyConnections,
    WrongKeyType,
)
from leasequeue.keys import FORMAT
from leasequeue.wire.scripts import with_origins
from leasequeue.wire.tls import IS_FULL, why_tls_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.wire.scripts import Script

# redis-py removes the first word of the errors that it has a class for, and not every version keeps it.
_BY_CLASS: tuple[tuple[type[RedisError], type[ServerError]], ...] = (
    (AuthenticationError, LoginRefused),
    (AuthenticationWrongNumberOfArgsError, LoginRefused),
    (NoPermissionError, AccessDenied),
    (OutOfMemoryError, ServerOutOfMemory),
    (ReadOnlyError, ServerReadOnly),
    (BusyLoadingError, ServerBusy),
    (ClusterDownError, ServerBusy),
    (TryAgainError, ServerBusy),
    (AskError, ServerBusy),
)
#: What scripts end with when the server's process gets no more memory.
LUA_IS_FULL = "not enough memory"
# The first word of the server's error, or a word inside it: Redis 6.2 wraps errors of scripts.
BY_WORD: tuple[tuple[str, type[ServerError]], ...] = (
    ("WRONGTYPE", WrongKeyType),
    ("LIMIT", LimitExceeded),
    ("QUEUEDELETED", QueueDeleted),
    ("OOM", ServerOutOfMemory),
    (LUA_IS_FULL, ServerOutOfMemory),
    ("READONLY", ServerReadOnly),
    ("NOREPLICAS", ServerReadOnly),
    ("MISCONF", ServerReadOnly),
    ("LOADING", ServerBusy),
    ("BUSY", ServerBusy),
    ("UNBLOCKED", ServerBusy),
    ("MASTERDOWN", ServerBusy),
    ("CLUSTERDOWN", ServerBusy),
    ("TRYAGAIN", ServerBusy),
    ("ASK", ServerBusy),
    ("NOAUTH", LoginRefused),
    ("WRONGPASS", LoginRefused),
    ("unauthenticated", LoginRefused),  # the answer to a long command, before the password is checked
    ("NOPERM", AccessDenied),
    ("ACL failure", AccessDenied),
    ("The user executing the script can't", AccessDenied),  # the text of Redis up to 7.0
    ("DB index is out of range", DatabaseMissing),
    ("SELECT is not allowed in cluster mode", DatabaseMissing),
    ("cluster support disabled", ServerRefused),
)
_ADVICE: dict[type[ServerError], str] = {
    WrongKeyType: "another program uses a key of this queue; choose another name, or remove that key",
    QueueDeleted: "nothing was added; when the deletion has ended, the name can be used again. If it was "
    "interrupted, finish it with `delete` or `leasequeue rm`",
    LimitExceeded: "one call was given more than a script accepts; nothing was applied. Split the call",
    ServerOutOfMemory: "the server has reached its maxmemory; nothing was applied. Leasing and completing "
    "still work",
    ServerReadOnly: "the server accepts no writes now; nothing was applied",
    ServerBusy: "nothing was applied; try again",
    LoginRefused: "check the user and the password, in a URL redis://USER:PASSWORD@HOST; nothing was applied",
    AccessDenied: "`leasequeue acl QUEUE --user USER --role ROLE` prints what a user needs as a worker, "
    "producer or watcher; nothing was applied, unless the user may use only some of the queue's keys",
    DatabaseMissing: "choose a smaller number, in a URL redis://HOST:PORT/NUMBER, or raise the"
    " server's `databases`; a cluster has only database 0. Nothing was applied",
    ServerRefused: "the server is not part of a cluster. Give the queue a `redis.asyncio.Redis`, or leave "
    "out `cluster=True`; nothing was applied",
    ScriptFailed: "a script failed",
}
#: What is said of a command that the server does not have, or that its provider has taken away.
_UNKNOWN_COMMAND = re.compile(
    r"(?:ERR )?(?:unknown (?:or unsupported )?(?:sub)?command|command is not available)[: ]*['`\"] ?([\w|]+)",
    re.IGNORECASE,
)
#: What each script answers for a queue in a format that it does not know.
_NEWER = re.compile(r"FORMATTOONEW (?P<format>\d{1,9}) (?P<since>\S+) (?P<queue>.*)", re.DOTALL)
#: What is said by servers that run fewer scripts than Redis.
_STRICT = re.compile(
    "undeclared key|not allowed from script|bad lua script|without any input keys", re.IGNORECASE
)
_STRICT_ADVICE = (
    "the server permits a script only keys that are named before, or too few commands, so that Leasequeue "
    "cannot use it. Dragonfly permits them with `--default_lua_flags=allow-undeclared-keys`"
)
_FULL_ADVICE = (
    "the server's process gets no more memory of its machine or container. Set its maxmemory below what it "
    "can have, or give it more. The call may have been applied in part; repeat it"
)


def is_lost(error: BaseException) -> bool:
    """Return whether the connection is lost, as opposed to an error that the server has answered."""
    if isinstance(error, (OSError, EOFError)):
        return True
    # redis-py derives server answers such as LOADING and NOAUTH from its ConnectionError.
    return isinstance(error, (RedisConnectionError, RedisTimeoutError)) and not _words(error)


def is_unknown_script(error: BaseException) -> bool:
    """Return whether the server does not know the hash of a script: its cache was emptied, or it is new."""
    return isinstance(error, NoScriptError)


def unknown_command(error: BaseException | None) -> str | None:
    """Return the command that the server says it does not have; None: it says something else."""
    found = _UNKNOWN_COMMAND.match(_text(error)) if isinstance(error, ResponseError) else None
    return found and found[1].upper()


def lacks(commands: Iterable[str]) -> str:
    """Say that the server does not have these commands."""
    return f"the server does not have {', '.join(commands)}, or its provider forbids it"


def translate(error: BaseException, *, maybe_applied: bool, script: Script | None = None) -> LeasequeueError:
    """Return the error of `leasequeue.errors` for an error of redis-py, which becomes its cause.

    With `maybe_applied`, a call may have been applied if the connection was lost.
    """
    if isinstance(error, LeasequeueError):
        return error
    ours: LeasequeueError
    if isinstance(error, RedisClusterException) and error.__cause__ is not None:
        ours = translate(error.__cause__, maybe_applied=maybe_applied)  # why no node can be used
    elif (failed := why_tls_failed(error)) is not None:
        ours = failed
    elif isinstance(error, RedisError) and IS_FULL in _text(error):
        ours = TooManyConnections(_text(error))
    elif (newer := too_new_in(_text(error))) is not None:
        ours = newer
    elif is_lost(error):
        ours = ConnectionLost(str(error) or type(error).__name__, maybe_applied=maybe_applied)
    elif (command := unknown_command(error)) is not None:
        said = _text(error).partition(", with args")[0]  # they may be a payload
        ours = AccessDenied(f"{lacks([command])} ({said}); nothing was applied", commands=[command])
    elif isinstance(error, ResponseError) and _STRICT.search(_text(error)):
        ours = ServerRefused(f"{_text(error)}: {_STRICT_ADVICE}")
    else:
        found = _words(error)
        kind = found[0] if found else ScriptFailed
        advice = _FULL_ADVICE if LUA_IS_FULL in _text(error) else _ADVICE[kind]
        said = with_origins(_text(error), script) if script else _text(error)
        text = f"{said}: {advice}"
        ours = AccessDenied(text, **_forbidden(_text(error))) if kind is AccessDenied else kind(text)
    ours.__cause__ = error
    return ours


def too_new(queue: str, needed: int, since: str) -> FormatTooNew:
    """Return the error for a queue in a format that this version does not know."""
    return FormatTooNew(queue, needed, since, known=FORMAT, version=version("leasequeue"))


def too_new_in(text: str) -> FormatTooNew | None:
    """Return the error that a script has answered, if it is for such a queue."""
    found = _NEWER.search(text)
    return found and too_new(found["queue"], int(found["format"]), found["since"])


def _words(error: BaseException) -> list[type[ServerError]]:
    if not isinstance(error, RedisError):
        return []
    text = _text(error)
    by_class = [kind for raised, kind in _BY_CLASS if isinstance(error, raised)]
    return by_class or [kind for word, kind in BY_WORD if re.search(rf"\b{word}\b", text)]


def _forbidden(text: str) -> dict[str, list[str]]:
    """Return what the server's text says is forbidden, as the arguments of AccessDenied. Old ones do not."""
    named = re.findall(r"the '([^']*)' (command|key|channel)", text)
    return {
        "commands": [name.upper() for name, what in named if what == "command"],
        "keys": [name for name, what in named if what == "key"],
        "channels": [name for name, what in named if what == "channel"],
    }


def _text(error: BaseException) -> str:
    # redis-py removes the code from the text and stores it in an attribute.
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code and not str(error).startswith(str(code)) else str(error)
