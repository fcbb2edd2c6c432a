"""Calls that are done when replicas have their writes, too: in rounds, over a separate connection.

`WAIT` counts the writes of its own connection, and blocks it until the replicas have confirmed them. So for
these calls there is one for each server. A round is the scripts that have gathered, and one WAIT after them.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from leasequeue.errors import ConnectionLost, NotReplicated, copied
from leasequeue.wire.link import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leasequeue.wire.connection import Connection, OnReply
    from leasequeue.wire.runner import BoundScript, Runner

#: The maximum that a round waits for replicas (s). It is half of `reply_timeout` if that is shorter, so that
#: the connection does not count as lost.
WAIT_SECONDS = 2.0

_CONNECTED = re.compile(rb"^connected_slaves:(\d+)", re.MULTILINE)
#: The calls of a round that the server has answered, and the replies.
_Done: TypeAlias = "list[tuple[Request, Any]]"


class ReplicatedSender:
    """Sends scripts as `Runner` does, and passes on their replies when so many replicas have the writes."""

    def __init__(self, runner: Runner, replicas: int) -> None:
        self.reply_timeout = runner.reply_timeout
        self._link = runner.replicated(replicas, self._rounds_on)

    def send(
        self,
        script: BoundScript,
        rest: Iterable[bytes],
        on_reply: OnReply,
        /,
        *,
        large: bool = False,  # noqa: ARG002 - as of `Runner`: here all share one connection
        **arguments: bytes | int,
    ) -> None:
        """Send a script in the next round, and pass the reply or the error to `on_reply`."""
        self._link.post(Request(self._link, script.script, script.by_hash(arguments, rest), on_reply))

    def _rounds_on(self, connection: Connection) -> Rounds:
        """Return what all links use in place of this connection."""
        if not isinstance(connection.rounds, Rounds):
            connection.rounds = Rounds(connection, self.reply_timeout)
        return connection.rounds


class Rounds:
    """The rounds on one connection."""

    def __init__(self, connection: Connection, reply_timeout: float) -> None:
        self._connection = connection
        self._reply_timeout = reply_timeout
        self.retire = connection.retire
        #: The calls of the next round.
        self._gathered: list[Request] = []
        self._round_in_flight = False

    @property
    def closing(self) -> bool:
        """Whether the connection accepts no more calls."""
        return self._connection.closing

    @property
    def _wait_seconds(self) -> float:
        return min(WAIT_SECONDS, self._reply_timeout / 2)

    def post(self, _: tuple[bytes, ...], call: Request) -> None:
        """Send a call in the next round, which may be at once."""
        self._gathered.append(call)
        if not self._round_in_flight:
            self._send_round()

    def _send_round(self) -> None:
        calls, self._gathered = self._gathered, []
        if self.closing:
            for call in calls:
                call.link.post(call)  # over the next connection
        elif calls:
            done: _Done = []
            # If one call asks for more replicas than another, the other waits with it.
            wanted = max(call.link.replicas for call in calls)
            wait = (b"WAIT", b"%d" % wanted, b"%d" % max(1, round(self._wait_seconds * 1000)))
            posts = [(call.command, partial(self._answered, done, call)) for call in calls]
            try:
                self._connection.post_many([*posts, (wait, partial(self._waited, done))])
                self._round_in_flight = True
            except Exception as error:  # noqa: BLE001 - the callers get it
                for call in calls:
                    call.fail(copied(error))

    def _answered(self, done: _Done, call: Request, reply: Any, error: BaseException | None) -> None:
        if error is None:
            done.append((call, reply))
        else:
            call(None, error)

    def _waited(self, done: _Done, count: Any, error: BaseException | None) -> None:
        """End a round: pass on the replies of what enough replicas have, and begin the next one."""
        confirmed = count if isinstance(count, int) else 0
        short: _Done = []
        for call, reply in done:
            if isinstance(error, ConnectionLost):
                call(None, error)
            elif confirmed >= call.link.replicas:
                call(reply, None)
            else:
                short.append((call, reply))
        if short and not self.closing:
            self._connection.post((b"INFO", b"replication"), partial(self._explain, short, confirmed))
        else:
            self._explain(short, confirmed, None, error)
        self._round_in_flight = False  # only now: what the callers have posted meanwhile goes together
        self._send_round()

    def _explain(self, short: _Done, confirmed: int, info: Any, _: BaseException | None) -> None:
        """Notify callers that too few replicas have what they have written."""
        found = _CONNECTED.search(info) if isinstance(info, bytes) else None
        for call, reply in short:
            error = NotReplicated(
                (answer == 1 for answer in reply),
                replicas=call.link.replicas,
                confirmed=confirmed,
                connected=int(found[1]) if found else None,
                waited=self._wait_seconds,
            )
            call.fail(error)
