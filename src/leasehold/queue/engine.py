"""The running parts of a queue object: a runner, a batcher per batched script, the lease dispatcher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from leasehold.errors import LeaseholdError
from leasehold.queue.leasing import LeaseDispatcher, LeasedItem
from leasehold.queue.listener import Listener
from leasehold.scripting.batcher import Batcher
from leasehold.scripting.connection import open_connection
from leasehold.scripting.runner import BoundScript, CommonArguments, Runner, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leasehold.keys import QueueKeys
    from leasehold.scripting.connection import Connection
    from leasehold.scripting.endpoints import Endpoint

#: What a batched script does to the item of a row.
Effect = Literal["add", "complete", "renew", "release", "retry"]

#: The scripts whose concurrent calls share trips. This is the one list of them: the history that
#: `leasehold.testing` records reads it, too.
BATCHED: dict[str, Effect] = {
    "add_items": "add",
    "complete_many": "complete",
    "renew_many": "renew",
    "release_many": "release",
    "fail_many": "retry",
}


class Engine:
    """The running parts of one queue object. It belongs to the event loop that it was made in.

    Args:
        keys: The queue's keys.
        endpoint: Where the server is.
        reply_timeout: Seconds to wait for a reply before the connection counts as lost.
        return_front: Whether expired items go to the front.
        clock: Returns the time in seconds since 1970, in place of the server's clock; for tests.
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
        self.keys = keys
        self.loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._reply_timeout = reply_timeout
        self._common = CommonArguments(keys, return_front=return_front, clock=clock)
        self._scripts: dict[str, BoundScript] = {}
        self._runner = Runner(endpoint, reply_timeout=reply_timeout)
        self._batchers = {name: Batcher(self._runner, self._script(name)) for name in BATCHED}
        self._subscriptions: set[Connection] = set()
        self._releasing: set[asyncio.Task[None]] = set()
        self._dispatcher = LeaseDispatcher(
            self._runner,
            self._script("lease_many"),
            Listener(
                endpoint,
                keys,
                self._runner,
                register=self._script("register"),
                leave=self._script("leave"),
            ),
            release=self._release_spare,
        )

    async def lease(
        self, count: int, lease_ms: int, *, blocks: bool, timeout: float | None
    ) -> list[LeasedItem]:
        """Lease up to `count` items. See `LeaseDispatcher.lease`."""
        return await self._dispatcher.lease(count, lease_ms, blocks=blocks, timeout=timeout)

    async def one(self, name: str, row: Sequence[bytes], *, size: int = 64) -> Any:
        """Send one row of a batched script, together with rows of other callers, and return its answer."""
        return (await self._batchers[name].call(row, size=size))[0]

    async def many(self, name: str, rows: Sequence[Sequence[bytes]], *, size: int = 64) -> list[Any]:
        """Send rows of a batched script, together with those of other callers; return all answers."""
        flat = [value for row in rows for value in row]
        return await self._batchers[name].call(flat, row_count=len(rows), size=size)

    async def run(self, name: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        """Send a script in its own trip, and return the reply."""
        return await self._runner.run(self._script(name), rest, **arguments)

    def command(self, name: str, rest: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return a script as a plain command, for a pipeline of the user."""
        return self._script(name).command({}, rest)

    async def subscribe(self, channel: str, on_message: Callable[[], None]) -> Connection:
        """Subscribe to a channel, on a new connection.

        Args:
            channel: Its name among the keys.
            on_message: Called for each message, and when the connection has ended.
        """
        connection = await open_connection(
            self._endpoint, reply_timeout=self._reply_timeout, on_end=on_message, pushes=True
        )
        connection.subscribe(self.keys[channel], lambda _: on_message())
        self._subscriptions.add(connection)
        return connection

    async def unsubscribe(self, connection: Connection) -> None:
        """Close a connection of `subscribe`."""
        self._subscriptions.discard(connection)
        await connection.close()

    def due_in(self, seconds: float) -> None:
        """Lease in `seconds`, if any caller waits. See `LeaseDispatcher.due_in`."""
        self._dispatcher.due_in(seconds)

    async def stop_listening(self) -> None:
        """Stop listening if no caller waits for items, and return when none is on its way here."""
        await self._dispatcher.stop_listening()
        await asyncio.gather(*self._releasing)

    async def close(self, error: LeaseholdError) -> None:
        """Send what was called, fail those who wait for items, release spare items, disconnect."""
        await self._dispatcher.close(error)
        for batcher in self._batchers.values():
            await batcher.drained()
        await asyncio.gather(*self._releasing)
        await self._runner.close(error)
        await asyncio.gather(*map(self.unsubscribe, [*self._subscriptions]))

    def _script(self, name: str) -> BoundScript:
        if name not in self._scripts:
            self._scripts[name] = bind(name, self.keys, self._common)
        return self._scripts[name]

    def _release_spare(self, spare: list[LeasedItem]) -> None:
        """Release items that were leased for callers that have been cancelled."""
        if spare:
            task = asyncio.create_task(self._release(spare), name="leasehold release")
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _release(self, spare: list[LeasedItem]) -> None:
        rows = [(item_id, b"%d" % token, b"0", b"1") for item_id, _, token, *_ in spare]
        try:
            await self.many("release_many", rows)
        except LeaseholdError:
            return  # the server is unavailable; the items return to the queue when their leases expire
