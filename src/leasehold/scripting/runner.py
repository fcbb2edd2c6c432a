"""Runs scripts by hash, with one reload, over one connection, which is replaced when it breaks."""

from __future__ import annotations

import asyncio
import copy
import re
import warnings
from typing import TYPE_CHECKING, Any

from redis.exceptions import MovedError, NoPermissionError, NoScriptError

from leasehold.errors import ConnectionLost, EvictionWarning, LeaseholdError, ServerReadOnly, ServerTooOld
from leasehold.scripting.catalogue import Script, load
from leasehold.scripting.connection import Connection, OnReply, open_connection
from leasehold.scripting.server_errors import translate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from leasehold.keys import QueueKeys
    from leasehold.scripting.endpoints import Endpoint

OLDEST = (6, 2)


class Call:
    """One call of a script, until its reply arrives."""

    __slots__ = ("on_reply", "reloaded", "rerouted", "script", "tail")

    def __init__(self, script: Script, tail: tuple[bytes, ...], on_reply: OnReply) -> None:
        self.script = script
        self.tail = tail
        self.on_reply = on_reply
        self.reloaded = False
        self.rerouted = False

    @property
    def command(self) -> tuple[bytes, ...]:
        """The command, with the hash; with the text if the server did not know the hash."""
        if self.reloaded:
            return (b"EVAL", self.script.body, *self.tail)
        return (b"EVALSHA", self.script.sha, *self.tail)


class CommonArguments:
    """The arguments that are the same in every script of a queue: its prefix, its session, the time.

    Args:
        keys: The queue's keys.
        return_front: Whether expired items return to the front of the queue.
        clock: Returns the time in seconds since 1970, in place of the server's clock; for tests.
    """

    def __init__(
        self, keys: QueueKeys, *, return_front: bool, clock: Callable[[], float] | None = None
    ) -> None:
        self._keys = keys
        self._return_front = int(return_front)
        self._clock = clock

    def current(self) -> dict[str, bytes | int]:
        """Return them by name, with the present time if there is a clock."""
        return {
            "prefix": self._keys.prefix,
            "now_ms": b"" if self._clock is None else round(self._clock() * 1000),
            "session": self._keys.session,
            "return_front": self._return_front,
        }


class BoundScript:
    """A script with the keys of one queue. Its arguments are given by name.

    Args:
        script: The script.
        keys: The queue's keys.
        common: The arguments that need not be given; None: all are given.
    """

    def __init__(self, script: Script, keys: QueueKeys, common: CommonArguments | None = None) -> None:
        self.script = script
        names = list(script.arguments)
        self._fixed = names[:-1] if names and script.arguments[names[-1]] == "rest" else names
        self._keys = (str(len(script.keys)).encode(), *(keys[name] for name in script.keys))
        self._common = common

    def tail(self, arguments: Mapping[str, bytes | int], rest: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """Return keys and arguments in the order of the script's header.

        Raises:
            KeyError: If an argument of the header is missing.
        """
        given = arguments if self._common is None else {**self._common.current(), **arguments}
        fixed = [
            value if isinstance(value, bytes) else b"%d" % value
            for value in map(given.__getitem__, self._fixed)
        ]
        return (*self._keys, *fixed, *rest)

    def command(self, arguments: Mapping[str, bytes | int], rest: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """Return the command with the script's text, for pipelines, where no reload is possible."""
        return (b"EVAL", self.script.body, *self.tail(arguments, rest))


class Runner:
    """Sends scripts for one queue.

    Args:
        endpoint: Where the server is.
        reply_timeout: Seconds to wait for a reply before the connection counts as lost.
    """

    def __init__(self, endpoint: Endpoint, *, reply_timeout: float) -> None:
        self._endpoint = endpoint
        self._reply_timeout = reply_timeout
        self._connection: Connection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._queued: list[Call] = []
        self._checked = False
        self._refusal: LeaseholdError | None = None

    def send(
        self, script: BoundScript, rest: Iterable[bytes], on_reply: OnReply, /, **arguments: bytes | int
    ) -> None:
        """Send a script now, or once connected, and pass the reply to `on_reply`."""
        self._post(Call(script.script, script.tail(arguments, rest), on_reply))

    async def run(self, script: BoundScript, rest: Iterable[bytes] = (), **arguments: bytes | int) -> Any:
        """Send a script and return its reply.

        Raises:
            LeaseholdError: See `leasehold.errors`; each says whether anything was applied.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(reply)
            else:
                future.set_exception(error)

        self.send(script, rest, on_reply, **arguments)
        return await future

    async def close(self, refusal: LeaseholdError) -> None:
        """End the connection. Calls that are not sent yet, and all later ones, fail with `refusal`."""
        self._refusal = refusal
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        self._fail_queued(refusal)
        self._drop_connection()
        if self._closing is not None:
            await self._closing

    def _post(self, call: Call) -> None:
        if self._refusal is not None:
            call.on_reply(None, copy.copy(self._refusal))
            return
        if self._connection is not None:

            def answered(reply: Any, error: BaseException | None) -> None:
                if error is None:
                    call.on_reply(reply, None)
                else:
                    self._failed(call, error)

            self._connection.post(call.command, answered)
            return
        self._queued.append(call)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="leasehold connect")

    def _failed(self, call: Call, error: BaseException) -> None:
        if isinstance(error, NoScriptError) and not call.reloaded:
            call.reloaded = True
            self._post(call)
            return
        if isinstance(error, MovedError) and not call.rerouted:
            # The node did not run it, so it is not sent twice.
            call.rerouted = True
            self._drop_connection()
            self._post(call)
            return
        ours = translate(error, maybe_applied=True)
        if isinstance(ours, ServerReadOnly):
            self._drop_connection()  # after a fail-over the next connection finds the new primary
        call.on_reply(None, ours)

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._closing = asyncio.create_task(connection.close(), name="leasehold disconnect")

    def _ended(self) -> None:
        if self._connection is not None and self._connection.ended:
            self._connection = None

    async def _open(self) -> None:
        try:
            if any(call.rerouted for call in self._queued):
                await self._endpoint.moved()
            connection = await open_connection(
                self._endpoint, reply_timeout=self._reply_timeout, on_end=self._ended
            )
            try:
                if not self._checked:
                    await self._check_server(connection)
                    self._checked = True
                connection.expect_open()  # it may have ended just after the reply
            except BaseException:
                await connection.close()
                raise
            self._connection = connection
        except Warning as error:  # the user has turned our warning into an error
            self._fail_queued(error)
        except Exception as error:  # noqa: BLE001 - every waiting caller gets it
            self._fail_queued(translate(error, maybe_applied=False))
        finally:
            self._opening = None
        queued, self._queued = self._queued, []
        for call in queued:
            self._post(call)

    def _fail_queued(self, error: Exception) -> None:
        queued, self._queued = self._queued, []
        for call in queued:
            call.on_reply(None, copy.copy(error))

    async def _check_server(self, connection: Connection) -> None:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_reply(reply: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(reply)
            elif isinstance(error, NoPermissionError):
                future.set_result(b"")  # the access rules forbid INFO; the checks are skipped
            elif isinstance(error, ConnectionLost):
                future.set_exception(ConnectionLost("lost while connecting", maybe_applied=False))
            else:
                future.set_exception(translate(error, maybe_applied=False))

        connection.post((b"INFO",), on_reply)
        info = dict(
            line.split(":", 1) for line in (await future).decode(errors="replace").splitlines() if ":" in line
        )
        version = info.get("redis_version", "6.2")
        if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < OLDEST:
            raise ServerTooOld(
                f"the server is Redis {version}; Leasehold needs Redis 6.2, Valkey 7.2 or newer"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and info.get("maxmemory", "0") != "0":
            warnings.warn(
                f"the server's maxmemory-policy is {policy}: under memory pressure it evicts unfinished "
                "items. Set it to noeviction.",
                EvictionWarning,
                stacklevel=2,
            )


def bind(name: str, keys: QueueKeys, common: CommonArguments | None = None) -> BoundScript:
    """Return a script of the catalogue, bound to the keys of a queue."""
    return BoundScript(load()[name], keys, common)
