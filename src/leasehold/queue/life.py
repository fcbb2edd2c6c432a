"""The life of a queue object: how it is made, what it stands on, how it ends."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

from leasehold.durations import Duration, seconds
from leasehold.embedded import open_server
from leasehold.errors import InvalidArgument, QueueClosed
from leasehold.keys import QueueKeys, check_hash_tag, check_prefix
from leasehold.queue.engine import Engine
from leasehold.scripting.endpoints import (
    Client,
    client_of,
    close_client,
    cluster_of,
    endpoint_of,
    is_cluster,
    twin_of,
    url_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from types import TracebackType


class OpenQueue:
    """What `AsyncWorkQueue` is before it does anything; its arguments are described there."""

    def __init__(
        self,
        name: str,
        redis: Client,
        *,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if return_to not in ("end", "front"):
            raise InvalidArgument("return_to", return_to, "'end' or 'front'")
        self._name = check_prefix(name)
        self._reply_timeout = seconds("reply_timeout", reply_timeout, zero=False)
        self._session = f"lh:{uuid.uuid4().hex}"
        self._keys = QueueKeys(self._name, self._session)
        self._endpoint = endpoint_of(redis, self._keys["queue"])
        if is_cluster(redis):
            check_hash_tag(self._name)
        self._return_front = return_to == "front"
        self._clock = clock
        self._url = url_of(redis)
        self._client = redis
        self._owned: Client | None = None
        #: What makes the running parts; `leasehold.testing` puts one in that listens.
        self.make_engine: Callable[..., Engine] = Engine
        self._running: Engine | None = None
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    def from_url(
        cls,
        url: str,
        name: str,
        *,
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
        cluster: bool = False,
    ) -> Self:
        """A queue on the server at a URL: `redis://`, `rediss://` or `unix://`.

        Args:
            url: Where the server is.
            name: The queue's name.
            return_to: See the class.
            reply_timeout: See the class.
            clock: See the class.
            cluster: Whether it is a node of a cluster; the others are found through it.

        Raises:
            InvalidArgument: If the URL or another argument cannot be used.
        """
        client: Client = cluster_of(url) if cluster else client_of(url)
        queue = cls(name, client, return_to=return_to, reply_timeout=reply_timeout, clock=clock)
        queue._owned = client
        return queue

    @classmethod
    @asynccontextmanager
    async def embedded(
        cls,
        name: str,
        *,
        dir: str | Path | None = None,  # noqa: A002 - the server's own word for it
        return_to: str = "end",
        reply_timeout: Duration = 10.0,
        clock: Callable[[], float] | None = None,
    ) -> AsyncIterator[Self]:
        """A queue on a server of its own, started here and gone with this process, even if that is killed.

            async with AsyncWorkQueue.embedded("emails") as queue:
                print(queue.url)      # where other processes can join

        If the environment variable REDIS_URL is set, that server is used and none is started.

        Args:
            name: The queue's name.
            dir: Where the server keeps its data across restarts; None: they go with it.
            return_to: See the class.
            reply_timeout: See the class.
            clock: See the class.

        Raises:
            EmbeddedServerError: If no server program is found, or it does not start.
        """
        async with (
            await open_server(dir=dir) as server,
            cls.from_url(
                server.url, name, return_to=return_to, reply_timeout=reply_timeout, clock=clock
            ) as queue,
        ):
            yield queue

    def twin(self, *, reply_timeout: Duration | None = None) -> Self:
        """Another object of the same queue, for another thread or event loop.

        It has the same server, settings and session, and connections of its own; close it there. What was
        leased through one can be renewed, completed and given back through the other. Only one of the two
        should wait for items: what arrives for a session goes to whoever takes it first.

            def renew_in_a_thread(queue, lease):
                asyncio.run(renew(queue.twin(), lease))

        Args:
            reply_timeout: Seconds to wait for an answer, if not as long as this object does.
        """
        client = twin_of(self._client)
        twin = type(self)(
            self._name,
            client,
            return_to="front" if self._return_front else "end",
            reply_timeout=self._reply_timeout if reply_timeout is None else reply_timeout,
            clock=self._clock,
        )
        twin.__dict__.update(
            _session=self._session,
            _keys=self._keys,
            _owned=None if client is self._client else client,
            make_engine=self.make_engine,
        )
        return twin

    async def release_arrivals(self) -> int:
        """Give back what is on its way to this session, to the front of the queue.

        For a twin, when the event loop that waits for items is blocked and cannot take them.

        Returns:
            How many ids went back.

        Raises:
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`.
        """
        return int(await self._engine.run("leave", stays=1))

    async def rest(self) -> None:
        """Wait for items no more, if nobody does, and return when none is on its way to this object.

        Otherwise that comes to pass by itself a moment after the last call of `lease`; a process that ends
        before holds up whatever is sent to it for some seconds. `close` does this, too.
        """
        if self._running is not None:
            await self._running.rest()

    @property
    def name(self) -> str:
        """The queue's name: the prefix of its keys."""
        return self._name

    @property
    def session(self) -> str:
        """The name of this queue object on the server: the value of its lease keys."""
        return self._session

    @property
    def url(self) -> str | None:
        """Where the server is, for other processes to join; None on a cluster or under Sentinel."""
        return self._url

    async def close(self) -> None:
        """Send what was called, let nobody wait any longer, disconnect. Leases that are out stay leased.

        Those who wait in `lease` get QueueClosed. Closing twice is fine.
        """
        self._closed = True
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="leasehold close")
        # A caller who is cancelled does not wait for the end, but it comes all the same.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        engine, self._running = self._running, None
        if engine is not None:
            await engine.close(QueueClosed(self._name))
        if self._owned is not None:
            await close_client(self._owned)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _engine(self) -> Engine:
        """The running parts, made when they are first needed, in the event loop that needs them."""
        if self._running is None:
            if self._closed:
                raise QueueClosed(self._name)
            self._running = self.make_engine(
                self._keys,
                self._endpoint,
                reply_timeout=self._reply_timeout,
                return_front=self._return_front,
                clock=self._clock,
            )
        return self._running
