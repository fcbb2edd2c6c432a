"""The translation of the server's errors."""

from __future__ import annotations

import asyncio

import pytest
from redis import exceptions as redis_errors
from redis._parsers.base import BaseParser

from leasequeue import errors
from leasequeue.wire.server_errors import is_lost, translate

#: The server's words, and what they are to us. What redis-py makes of them differs between its versions.
TABLE: list[tuple[str, type[errors.LeasequeueError]]] = [
    ("WRONGTYPE Operation against a key holding the wrong kind of value", errors.WrongKeyType),
    ("OOM command not allowed when used memory > 'maxmemory'.", errors.ServerOutOfMemory),
    ("READONLY You can't write against a read only replica.", errors.ServerReadOnly),
    ("NOREPLICAS Not enough good replicas to write.", errors.ServerReadOnly),
    ("MISCONF Redis is configured to save RDB snapshots, but it cannot", errors.ServerReadOnly),
    ("LOADING Redis is loading the dataset in memory", errors.ServerBusy),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", errors.ServerBusy),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'", errors.ServerBusy),
    ("CLUSTERDOWN The cluster is down", errors.ServerBusy),
    ("TRYAGAIN Multiple keys request during rehashing of slot", errors.ServerBusy),
    ("ASK 3999 127.0.0.1:6381", errors.ServerBusy),
    ("NOAUTH Authentication required.", errors.LoginRefused),
    ("WRONGPASS invalid username-password pair or user is disabled.", errors.LoginRefused),
    ("NOPERM User default has no permissions to run the 'eval' command", errors.AccessDenied),
    ("ERR The user executing the script can't run this command or subcommand", errors.AccessDenied),
    ("ERR The user executing the script can't access at least one of the keys", errors.AccessDenied),
    (
        "ERR Error running script: @u:9: The user executing the script can't run",
        errors.AccessDenied,
    ),
    ("ERR invalid password", errors.LoginRefused),
    ("ERR Protocol error: unauthenticated multibulk length", errors.LoginRefused),
    ("ERR wrong number of arguments for 'auth' command", errors.LoginRefused),
    ("ERR DB index is out of range", errors.DatabaseMissing),
    ("ERR SELECT is not allowed in cluster mode", errors.DatabaseMissing),
    ("ERR unknown command 'EVALSHA'", errors.AccessDenied),
    ("ERR unknown command `eval`", errors.AccessDenied),
    ("ERR unknown command ' client '", errors.AccessDenied),
    ("ERR unknown or unsupported command 'hello'", errors.AccessDenied),
    ("ERR Command is not available: 'INFO'", errors.AccessDenied),
    ("ERR Unknown command called from script", errors.ScriptFailed),
    ("ERR script tried accessing undeclared key", errors.ServerRefused),
    ("ERR This Redis command is not allowed from script script: 1", errors.ServerRefused),
    ("ERR Lua scripts without any input keys are not supported.", errors.ServerRefused),
    ("ERR value is not an integer or out of range", errors.ScriptFailed),
    ("CROSSSLOT Keys in request don't hash to the same slot", errors.ScriptFailed),
    ("EXECABORT Transaction discarded because of previous errors.", errors.ScriptFailed),
    ("BUSYGROUP Consumer Group name already exists", errors.ScriptFailed),
    # Redis 6.2 wraps the errors of commands in scripts.
    ("ERR Error running script (call to f_abc): @user_script:12: WRONGTYPE Operation", errors.WrongKeyType),
    ("ERR Error running script (call to f_abc): @user_script:7: OOM command", errors.ServerOutOfMemory),
    ("ERR Error running script, not enough memory", errors.ServerOutOfMemory),
    ("ERR Error running script (call to f_abc): not enough memory", errors.ServerOutOfMemory),
    ("ERR This instance has cluster support disabled", errors.ServerRefused),
    ("ERR Error running script (call to f_abc): @user_script:7: -READONLY You", errors.ServerReadOnly),
]


def raised(line: str) -> Exception:
    """Return the exception of redis-py for an error line of the server."""
    error = BaseParser.parse_error(line)  # type: ignore[no-untyped-call]  # theirs has no types
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("line", "kind"), TABLE, ids=lambda value: value.split()[0] if isinstance(value, str) else ""
)
@pytest.mark.parametrize("code_is_kept", [True, False], ids=["", "as older redis-py"])
def test_the_server_s_words_choose_the_class(
    line: str, kind: type[errors.LeasequeueError], *, code_is_kept: bool
) -> None:
    error = raised(line)
    if not code_is_kept and hasattr(error, "status_code"):
        # Older versions of redis-py remove the first word; only the class is left.
        del error.status_code
    assert not is_lost(error)
    ours = translate(error, maybe_applied=True)
    assert type(ours) is kind
    assert ours.__cause__ is error
    assert line.split(maxsplit=1)[1][-20:] in str(ours), "the server's own words are in the message"


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.ConnectionError("Connection closed by server."),
        redis_errors.TimeoutError("Timeout connecting to server"),
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        OSError(113, "No route to host"),
        TimeoutError(),
        asyncio.IncompleteReadError(b"", 1),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("maybe_applied", [True, False])
def test_a_lost_connection_says_whether_the_step_may_have_been_applied(
    error: Exception, *, maybe_applied: bool
) -> None:
    assert is_lost(error)
    ours = translate(error, maybe_applied=maybe_applied)
    assert isinstance(ours, errors.ConnectionLost)
    assert ours.maybe_applied is maybe_applied
    assert ("may have been applied" in str(ours)) == maybe_applied
    assert ours.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        redis_errors.ConnectionError("max number of clients reached"),
        redis_errors.ResponseError("max number of clients + cluster connections reached"),
    ],
    ids=["", "of a cluster"],
)
def test_a_server_without_room_for_a_connection_says_what_to_raise(error: Exception) -> None:
    ours = translate(error, maybe_applied=False)
    assert type(ours) is errors.TooManyConnections
    assert (ours.transient, ours.maybe_applied) == (True, False)
    assert str(error) in str(ours)
    assert "maxclients" in str(ours)


def test_the_name_of_an_unknown_command_is_told_and_not_its_arguments() -> None:
    refused = translate(
        raised("ERR unknown command 'eval', with args beginning with: 'secret'"), maybe_applied=True
    )
    assert isinstance(refused, errors.AccessDenied)
    assert refused.commands == ("EVAL",)
    assert "secret" not in str(refused)
    assert "nothing was applied" in str(refused)


def test_an_error_without_a_text_is_named_by_its_class() -> None:
    assert str(translate(EOFError(), maybe_applied=False)).startswith("EOFError: ")


def test_our_own_errors_stay_as_they_are() -> None:
    ours = errors.QueueClosed("emails")
    assert translate(ours, maybe_applied=True) is ours


def test_an_unknown_error_is_a_failed_script() -> None:
    assert type(translate(ValueError("odd"), maybe_applied=True)) is errors.ScriptFailed
    assert not is_lost(ValueError("odd"))


@pytest.mark.parametrize("kind", dict.fromkeys(kind for _, kind in TABLE), ids=lambda kind: kind.__name__)
def test_all_of_them_are_errors_of_the_server(kind: type[errors.LeasequeueError]) -> None:
    assert issubclass(kind, errors.ServerError)
