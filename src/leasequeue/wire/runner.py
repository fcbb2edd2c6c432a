"""Runs scripts by hash, with the arguments that are common to all scripts of a queue."""

from __future__ import annotations

import asyncio
import re
import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any

from leasequeue.errors import (
    AccessDenied,
    ConnectionLost,
    EvictionWarning,
    LeasequeueError,
    ScriptFailed,
    ServerRefused,
    ServerTooOld,
)
from leasequeue.keys import NONE
from leasequeue.wire.access import Role, watched
from leasequeue.wire.connection import ask, future_reply
from leasequeue.wire.link import LARGE_BYTES, Link, Request
from leasequeue.wire.rights import KnownRights
from leasequeue.wire.scripts import Script, find_script
from leasequeue.wire.server_errors import is_unknown_script, translate, unknown_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from leasequeue.keys import QueueKeys
    from leasequeue.wire.connection import Connection, OnReply
    from leasequeue.wire.server import Route

OLDEST = (6, 2)


class CommonArguments:
    """The arguments that are the same in every script of a queue: its prefix, its session, the time.

    Without `rights`, the server permits all but MSETEX. `clock` is in place of the server's, for tests.
    """

    def __init__(
        self,
        keys: QueueKeys,
        *,
        return_front: bool,
        rights: KnownRights | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._clock = clock
        self._rights = rights or KnownRights()
        self._set_many = False
        self._values: Mapping[str, bytes] = {
            "prefix": keys.prefix,
            "now_ms": b"",
            "session": keys.session,
            "secret": keys.secret,
            "return_front": b"%d" % return_front,
            "set_many": b"0",
        }

    def of(self, keys: QueueKeys) -> CommonArguments:
        """Return those of another queue."""
        front = self._values["return_front"] == b"1"
        return CommonArguments(keys, return_front=front, rights=self._rights, clock=self._clock)

    def current(self) -> Mapping[str, bytes]:
        """Return them by name: the same object, as long as nothing has changed."""
        if self._rights.set_many is not self._set_many:
            self._set_many = self._rights.set_many
            self._values = {**self._values, "set_many": b"%d" % self._set_many}
        if self._clock is None:
            return self._values
        return {**self._values, "now_ms": b"%d" % round(self._clock() * 1000)}


class BoundScript:
    """A script with the keys of one queue. Its arguments are given by name.

    What is in `common` need not be given.
    """

    def __init__(self, name: str, keys: QueueKeys, common: CommonArguments | None = None) -> None:
        self.name = name
        self._keys = keys
        self._common = common
        #: The last head, and the arguments that it was made from: most calls have the same.
        self._head: tuple[bytes, ...] | None = None
        self._made_of: tuple[Mapping[str, bytes], Mapping[str, bytes | int]] = ({}, {})

    @cached_property
    def script(self) -> Script:
        """The script."""
        return find_script(self.name)

    @cached_property
    def _fixed(self) -> list[str]:
        """The names of its arguments, but not that of the rest."""
        return [name for name, kind in self.script.arguments.items() if kind != "rest"]

    @cached_property
    def _start(self) -> tuple[bytes, ...]:
        """The command up to the keys."""
        keys = [self._keys[name] for name in self.script.keys]
        return b"EVALSHA", self.script.sha, b"%d" % len(keys), *keys

    def head(self, arguments: Mapping[str, bytes | int]) -> tuple[bytes, ...]:
        """Return the command up to the rest: EVALSHA, the hash, keys and arguments in the header's order."""
        common = {} if self._common is None else self._common.current()
        if self._head is None or self._made_of[0] is not common or self._made_of[1] != arguments:
            given = {**common, **arguments}
            fixed = [
                value if isinstance(value, bytes) else b"%d" % value
                for value in map(given.__getitem__, self._fixed)
            ]
            self._head = (*self._start, *fixed)
            self._made_of = (common, dict(arguments))
        return self._head

    def by_hash(self, arguments: Mapping[str, bytes | int], rest: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """Return the command with the script's hash, which the server may not know."""
        return (*self.head(arguments), *rest)

    def tail(self, arguments: Mapping[str, bytes | int], rest: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """Return keys and arguments in the order of the script's header, after their number."""
        return (*self.head(arguments)[2:], *rest)

    def command(self, arguments: Mapping[str, bytes | int], rest: Iterable[bytes] = ()) -> tuple[bytes, ...]:
        """Return the command with the script's text, for pipelines, where no reload is possible."""
        return (b"EVAL", self.script.body, *self.tail(arguments, rest))


class Runner:
    """Sends scripts to the server that holds some queues of a session; on a cluster, those in one slot.

    Attributes:
        reply_timeout: Seconds for which the server may be silent while a call waits for its reply, before the
            connection counts as lost.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        self.rights = route.servers.rights
        self.reply_timeout = route.servers.reply_timeout
        self._link = Link(route, kind="small", check=self._check, rights=self.rights)
        self._large_link = Link(route, kind="large", check=self._check, rights=self.rights)
        self._replicated: dict[int, Link] = {}
        self._probe: BoundScript | None = None
        self._prefix = b""

    def send(
        self,
        script: BoundScript,
        rest: Iterable[bytes],
        on_reply: OnReply,
        /,
        *,
        large: bool = False,
        **arguments: bytes | int,
    ) -> None:
        """Send a script now, or once connected, and pass the reply or the error to `on_reply`.

        `on_reply` is called exactly once. `large` uses the second connection, on which small calls do not
        wait.
        """
        link = self._large_link if large else self._link
        link.post(Request(link, script.script, script.by_hash(arguments, rest), on_reply))

    def replicated(self, replicas: int, adapt: Callable[[Connection], Any]) -> Link:
        """Return the way of calls that wait for so many replicas. See `wire.replicas`."""
        if replicas not in self._replicated:
            self._replicated[replicas] = Link(
                self.route,
                kind="replicated",
                check=self._check_wait,
                rights=self.rights,
                replicas=replicas,
                adapt=adapt,
            )
        return self._replicated[replicas]

    async def run(self, script: BoundScript, rest: Iterable[bytes] = (), **arguments: bytes | int) -> Any:
        """Send a script and return its reply."""
        future, on_reply = future_reply()
        values = tuple(rest)
        self.send(script, values, on_reply, large=sum(map(len, values)) > LARGE_BYTES, **arguments)
        return await future

    async def read(self, script: BoundScript, *command: bytes) -> Any:
        """Send a command with which a script would read a large reply, and return the reply.

        A script would copy each value twice: alone, the command takes the server a tenth of the time.
        """
        future, on_reply = future_reply()
        self._link.post(Request(self._link, script.script, command, on_reply))
        return await future

    async def read_many(self, script: BoundScript, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Send commands as `read` does, all of them at once, and return the replies."""
        answers = [future_reply() for _ in commands]
        self._link.post_many(
            [
                Request(self._link, script.script, command, on_reply)
                for command, (_, on_reply) in zip(commands, answers, strict=True)
            ]
        )
        return await asyncio.gather(*(future for future, _ in answers))

    async def ask(self, *commands: tuple[bytes, ...]) -> list[Any]:
        """Send plain commands about the server, all over one connection; return the replies and the errors.

        An error of the server takes the place of the reply.
        """
        link = self._link
        return await ask(
            lambda command, on_reply: link.post(Request(link, None, command, on_reply)), commands
        )

    async def expect_rights(self, scripts: Collection[str], keys: QueueKeys) -> None:
        """Check that the server permits what a worker needs: to run these scripts, and to wait for items.

        If it does not, the text of AccessDenied says which rules permit it.
        """
        # The server checks the access rules before it finds that these are no directions.
        [reply] = await self.ask((b"BLMOVE", keys[NONE], keys[NONE], b"NOWHERE", b"NOWHERE", b"0"))
        denied = isinstance(reply, AccessDenied) and "BLMOVE" in reply.commands
        if isinstance(reply, Exception) and not denied and not isinstance(reply, ScriptFailed):
            raise reply
        if denied and unknown_command(reply.__cause__) is not None:
            self.rights.absent |= {"BLMOVE"}
        self.rights.expect(scripts, {"BLMOVE"} if denied else ())

    def probe_with(self, keys: QueueKeys) -> None:
        """Find out with the first connection what the server permits, in the key space of this queue."""
        if self._probe is None:
            self._probe, self._prefix = BoundScript("probe", keys), keys.prefix
            if not self.rights.checked:
                self.rights.queue = keys.prefix.decode()

    async def close(self, refusal: LeasequeueError) -> None:
        """Send no more. Calls that are not sent yet, and all later ones, fail with `refusal`."""
        await asyncio.gather(
            *(link.close(refusal) for link in (self._link, self._large_link, *self._replicated.values()))
        )

    async def _check(self, connection: Connection) -> None:
        """Check the server once in a session, and what it permits again when a call was refused."""
        async with self.rights.checking:
            if not self.rights.checked:
                await self._check_server(connection)
            if not self.rights.checked or self.rights.stale:
                await self._check_rights(connection)
            self.rights.checked = True
        if self.rights.may_write:
            self._load_for_watchers(connection)

    async def _check_wait(self, connection: Connection) -> None:
        await self._check(connection)
        [reply] = await ask(connection.post, [(b"WAIT", b"0", b"1")])
        if isinstance(reply, AccessDenied):
            raise self.rights.denied({"WAIT"}, "which `replicas` needs", Role.PRODUCER)

    def _load_for_watchers(self, connection: Connection) -> None:
        """Load the scripts that watchers run, as these may not; nothing waits for it."""
        scripts = watched()

        def load_missing(known: list[int] | None, _: BaseException | None) -> None:
            for script, is_known in zip(scripts, known or (), strict=False):
                if not is_known and not connection.closing:
                    connection.post((b"SCRIPT", b"LOAD", script.body), lambda *_: None)

        connection.post((b"SCRIPT", b"EXISTS", *(one.sha for one in scripts)), load_missing)

    async def _check_rights(self, connection: Connection) -> None:
        """Call the `probe` script. If the server cannot run it now, the first call will say why.

        A server that runs no such scripts must say so before one of them has written.
        """
        if self._probe is None:
            return
        named = {"prefix": self._prefix}
        for command in (self._probe.by_hash(named), self._probe.command(named)):
            answered: asyncio.Future[tuple[Any, BaseException | None]] = (
                asyncio.get_running_loop().create_future()
            )
            connection.post(
                command, lambda *answer, future=answered: future.done() or future.set_result(answer)
            )
            reply, error = await answered
            if isinstance(error, ConnectionLost):
                raise ConnectionLost("lost while connecting", maybe_applied=False)
            if error is None:
                self.rights.learn(*reply)
                return
            if type(refusal := translate(error, maybe_applied=False)) is ServerRefused:
                raise refusal
            if not is_unknown_script(error):
                return

    async def _check_server(self, connection: Connection) -> None:
        try:
            [reply] = await ask(connection.post, [(b"INFO",)])
        except ConnectionLost as error:
            raise ConnectionLost("lost while connecting", maybe_applied=False) from error
        if isinstance(reply, AccessDenied):
            reply = b""  # INFO is forbidden, or there is none; the checks are skipped
        if isinstance(reply, Exception):
            raise reply
        info = dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)
        version = info.get("redis_version", "6.2")
        number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if number < OLDEST:
            raise ServerTooOld(
                f"the server is Redis {version}; Leasequeue needs Redis 6.2, Valkey 7.2 or newer"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and info.get("maxmemory", "0") != "0":
            warnings.warn(
                f"the server's maxmemory-policy is {policy}: under memory pressure it evicts unfinished "
                "items. Set it to noeviction.",
                EvictionWarning,
                stacklevel=2,
            )
