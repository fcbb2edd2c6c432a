"""A stream of Spark that leases the items of one more queue; it needs Java."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from leasequeue import AsyncWorkQueue, Item, LeasequeueError
from tests.failover.topologies import TAG, TIMEOUT
from tests.queue.asking import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.failover.topologies import Topology

NAME = f"{TAG}:spark"


class Streamed:
    """What a query has read.

    Args:
        queue: Where its items are added.
    """

    def __init__(self, queue: AsyncWorkQueue) -> None:
        self._queue = queue
        self.ids: set[str] = set()
        self.query: StreamingQuery | None = None

    def note(self, batch: DataFrame, _: int) -> None:
        """Note a batch; called by Spark in a thread of its own."""
        self.ids |= {row["id"] for row in batch.select("id").collect()}

    async def reads(self, item_id: str) -> None:
        """Return when the query has read a new item.

        Raises:
            AssertionError: If it has ended, or does not read it.
        """

        async def is_read() -> bool:
            assert self.query is None or self.query.isActive, f"the query has ended: {self.query.exception()}"
            with contextlib.suppress(LeasequeueError):
                await self._queue.add_item(Item("x", id=item_id))
            await asyncio.sleep(0.1)
            return item_id in self.ids

        await until("the query of Spark reads", is_read, within=2 * TIMEOUT)


@contextlib.asynccontextmanager
async def streaming(topology: Topology) -> AsyncIterator[Streamed]:
    """Run a query, and return when it reads."""
    from leasequeue.spark import register
    from tests.spark.quick import end_session, quick_session

    with TemporaryDirectory() as folder:
        session = await asyncio.to_thread(quick_session, Path(folder), "local[2]")
        try:
            register(session)
            async with AsyncWorkQueue(NAME, topology.client()) as queue:
                streamed = Streamed(queue)
                leases = session.readStream.format("leasequeue").options(
                    url=topology.url, queue=NAME, cluster=topology.cluster, mayBeMissing=True, idleWait=0.5
                )
                writes = leases.load().writeStream.foreachBatch(streamed.note)
                streamed.query = writes.option("checkpointLocation", f"{folder}/checkpoint").start()
                await streamed.reads("before")
                yield streamed
                await asyncio.to_thread(streamed.query.stop)
        finally:
            await asyncio.to_thread(end_session, session)
