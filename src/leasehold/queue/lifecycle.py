"""Opening and closing a queue object: its client, its session, and its engine."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from leasehold.durations import Duration, seconds
from leasehold.errors import InvalidArgument, QueueClosed
from leasehold.keys import QueueKeys, check_hash_tag, check_prefix
from leasehold.queue.engine import Engine
from leasehold.scripting.endpoints import (
    Client,
    close_client,
    endpoint_of,
    is_cluster,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Lifecycle:
    """Makes the engine of a queue object when it is first needed, and closes it.

    The arguments are those of `AsyncWorkQueue`.

    Attributes:
        owned_client: The client, if it was made for this object, to be closed with it.
        make_engine: Makes the engine; `leasehold.testing` puts one here that records the calls.
        running: The engine, if it has been made and is not closed.
    """

    def __init__(
        self,
        name: str,
        redis: Client,
        *,
        return_to: str,
        reply_timeout: Duration,
        clock: Callable[[], float] | None,
    ) -> None:
        if return_to not in ("end", "front"):
            raise InvalidArgument("return_to", return_to, "'end' or 'front'")
        self.name = check_prefix(name)
        self.reply_timeout = seconds("reply_timeout", reply_timeout, zero=False)
        self.keys = QueueKeys(self.name, f"lh:{uuid.uuid4().hex}")
        self.client = redis
        self._endpoint = endpoint_of(redis, self.keys["queue"])
        if is_cluster(redis):
            check_hash_tag(self.name)
        self.return_to = return_to
        self.clock = clock
        self.url = url_of(redis)
        self.owned_client: Client | None = None
        self.make_engine: Callable[..., Engine] = Engine
        self.running: Engine | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    def engine(self) -> Engine:
        """Return the engine; the first call makes it, in the event loop that it then belongs to.

        Raises:
            QueueClosed: If the queue object is closed.
        """
        if self.running is None:
            if self._closed:
                raise QueueClosed(self.name)
            self.running = self.make_engine(
                self.keys,
                self._endpoint,
                reply_timeout=self.reply_timeout,
                return_front=self.return_to == "front",
                clock=self.clock,
            )
        return self.running

    async def close(self) -> None:
        """Close the engine, and the client if it is owned. Closing twice is fine."""
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="leasehold close")
        # A cancelled caller does not wait for the end, but closing continues.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        engine, self.running = self.running, None
        if engine is not None:
            await engine.close(QueueClosed(self.name))
        if self.owned_client is not None:
            await close_client(self.owned_client)
