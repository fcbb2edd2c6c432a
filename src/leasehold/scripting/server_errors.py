"""What the server's errors mean: one table from its words to our classes."""

from __future__ import annotations

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)

from leasehold.errors import (
    ConnectionLost,
    LeaseholdError,
    ScriptFailed,
    ServerBusy,
    ServerError,
    ServerOutOfMemory,
    ServerReadOnly,
    ServerRefused,
    WrongKeyType,
)

# redis-py cuts the first word off the errors that it has a class for, and not every version keeps it.
_BY_CLASS: tuple[tuple[type[RedisError], type[ServerError]], ...] = (
    (AuthenticationError, ServerRefused),
    (AuthenticationWrongNumberOfArgsError, ServerRefused),
    (NoPermissionError, ServerRefused),
    (OutOfMemoryError, ServerOutOfMemory),
    (ReadOnlyError, ServerReadOnly),
    (BusyLoadingError, ServerBusy),
    (ClusterDownError, ServerBusy),
    (TryAgainError, ServerBusy),
    (AskError, ServerBusy),
)
# The first word of the server's error, or a word inside it: 6.2 wraps what a script met.
_BY_WORD: tuple[tuple[str, type[ServerError]], ...] = (
    ("WRONGTYPE", WrongKeyType),
    ("OOM", ServerOutOfMemory),
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
    ("NOAUTH", ServerRefused),
    ("WRONGPASS", ServerRefused),
    ("NOPERM", ServerRefused),
    ("ACL failure", ServerRefused),
    ("The user executing the script can't", ServerRefused),  # as Redis up to 7.0 says it
)
_ADVICE: dict[type[ServerError], str] = {
    WrongKeyType: "somebody else uses a key of this queue; choose another name, or remove that key",
    ServerOutOfMemory: "the server is at its maxmemory; nothing was applied. Leasing and completing go on",
    ServerReadOnly: "the server takes no writes now; nothing was applied",
    ServerBusy: "nothing was applied; try again",
    ServerRefused: "check the user, the password and the access rules; nothing was applied, unless a rule "
    "forbids only some of the commands that the protocol reference names",
    ScriptFailed: "the server refused a script",
}


def is_lost(error: BaseException) -> bool:
    """Whether an error means that the connection is gone, not that the server answered with an error."""
    if isinstance(error, (OSError, EOFError)):
        return True
    # redis-py derives server answers such as LOADING and NOAUTH from its ConnectionError.
    return isinstance(error, (RedisConnectionError, RedisTimeoutError)) and not _words(error)


def translate(error: BaseException, *, maybe_applied: bool) -> LeaseholdError:
    """Make one of our errors of what the client library raised, which is kept as its cause."""
    if isinstance(error, LeaseholdError):
        return error
    ours: LeaseholdError
    if is_lost(error):
        ours = ConnectionLost(str(error) or type(error).__name__, maybe_applied=maybe_applied)
    else:
        found = _words(error)
        kind = found[0] if found else ScriptFailed
        ours = kind(f"{_text(error)}: {_ADVICE[kind]}")
    ours.__cause__ = error
    return ours


def _words(error: BaseException) -> list[type[ServerError]]:
    if not isinstance(error, RedisError):
        return []
    text = _text(error)
    by_class = [kind for raised, kind in _BY_CLASS if isinstance(error, raised)]
    return by_class or [kind for word, kind in _BY_WORD if re.search(rf"\b{word}\b", text)]


def _text(error: BaseException) -> str:
    # redis-py cuts the code off the text and keeps it aside.
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code and not str(error).startswith(str(code)) else str(error)
