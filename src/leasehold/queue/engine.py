"""What a queue object is made of while it runs: one runner, a batcher per script, and the dispatcher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError
from leasehold.queue.leasing import Leased, LeaseDispatcher
from leasehold.queue.listener import KEEP_MS, Listener
from leasehold.scripting.batcher import Batcher
from leasehold.scripting.connection import open_connection
from leasehold.scripting.runner import BoundScript, Runner, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.keys import QueueKeys
    from leasehold.scripting.connection import Connection, OnReply
    from leasehold.scripting.endpoints import Endpoint

#: The scripts whose concurrent calls share trips.
BATCHED = ("add_items", "complete_many", "renew_many", "release_many", "fail_many")


class Engine:
    """The running parts of one queue object. It belongs to the event loop that it was made in.

    Args:
        keys: The queue's keys.
        endpoint: Where the server is.
        reply_timeout: Seconds to wait for a reply before the connection counts as lost.
        return_front: Whether expired items go to the front.
        clock: Gives the time in seconds since 1970 in place of the server's; for tests.
    """

    def __init__(
        self,
        keys: QueueKeys,
        endpoint: Endpoint,
        *,
        reply_timeout: float,
        return_front: bool,
        clock: Callable[[], float] | None,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._return_front = int(return_front)
        self._bound: dict[str, BoundScript] = {}
        self._endpoint = endpoint
        self._reply_timeout = reply_timeout
        self._runner = Runner(endpoint, reply_timeout=reply_timeout)
        self._subscriptions: set[Connection] = set()
        self._batchers = {name: Batcher(self._sender(name)) for name in BATCHED}
        self._releasing: set[asyncio.Task[None]] = set()
        self._dispatcher = LeaseDispatcher(
            self._runner,
            self._script("lease_many"),
            Listener(endpoint, keys, register=self._register, expect=self._expect, leave=self._leave),
            fixed=self._fixed,
            release=self._release_spare,
        )
        self.lease = self._dispatcher.lease

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        """Send one row with other callers' rows, and return the answer to it."""
        return (await self._batchers[name].call(row, size=size))[0]

    async def many(self, name: str, rows: Sequence[Sequence[bytes]], *, size: int = 64) -> list[Any]:
        """Send rows with other callers' rows; the answers are in the order of the rows."""
        flat = [value for row in rows for value in row]
        return await self._batchers[name].call(flat, row_count=len(rows), size=size)

    async def run(self, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        """Send one script that shares its trip with nobody."""
        return await self._runner.run(self._script(name), self._fixed() | arguments, rest)

    def command(self, name: str, rest: Sequence[bytes]) -> tuple[bytes, ...]:
        """A script as a plain command, for a pipeline of the user."""
        return self._script(name).command(self._fixed(), rest)

    async def subscribe(self, channel: str, on_message: Callable[[], None]) -> Connection:
        """Listen to a channel, on a connection of its own, until that is closed or ends.

        Args:
            channel: Its name among the keys.
            on_message: Called for each message, and at the end.
        """
        connection = await open_connection(
            self._endpoint, reply_timeout=self._reply_timeout, on_end=on_message, pushes=True
        )
        connection.subscribe(self._keys[channel], lambda _: on_message())
        self._subscriptions.add(connection)
        return connection

    async def unsubscribe(self, connection: Connection) -> None:
        """Close a connection of `subscribe`."""
        self._subscriptions.discard(connection)
        await connection.close()

    async def rest(self) -> None:
        """If nobody waits for an item, see to it that none is on its way here."""
        await self._dispatcher.rest()
        await asyncio.gather(*self._releasing)

    async def close(self, error: LeaseholdError) -> None:
        """Send what was called, let nobody wait any longer, give back, disconnect."""
        await self._dispatcher.close(error)
        for batcher in self._batchers.values():
            await batcher.settled()
        await asyncio.gather(*self._releasing)
        await self._runner.close(error)
        await asyncio.gather(*map(self.unsubscribe, [*self._subscriptions]))

    def _script(self, name: str) -> BoundScript:
        if name not in self._bound:
            self._bound[name] = bind(name, self._keys)
        return self._bound[name]

    def _sender(self, name: str) -> Callable[[list[bytes], OnReply], None]:
        bound = self._script(name)

        def send(values: list[bytes], on_reply: OnReply) -> None:
            self._runner.submit(bound.script, bound.tail(self._fixed(), values), on_reply)

        return send

    def _fixed(self) -> dict[str, bytes | int]:
        return {
            "prefix": self._keys.prefix,
            "now_ms": b"" if self._clock is None else round(self._clock() * 1000),
            "session": self._keys.session,
            "return_front": self._return_front,
        }

    def _expect(self, seconds: float) -> None:
        self._dispatcher.expect(seconds)

    def _register(self) -> tuple[bytes, ...]:
        return self._script("register").command(self._fixed() | {"keep_ms": KEEP_MS})

    async def _leave(self) -> None:
        while await self.run("leave", stays=0) == 1000:
            pass

    def _release_spare(self, spare: list[Leased]) -> None:
        if spare:
            task = asyncio.create_task(self._release(spare), name="leasehold give back")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, spare: list[Leased]) -> None:
        rows = [(item_id, b"%d" % token, b"0", b"1") for item_id, _, token, *_ in spare]
        try:
            await self.many("release_many", rows)
        except LeaseholdError:
            # The server is away. The items come back by themselves when their leases end.
            return
