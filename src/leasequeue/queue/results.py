"""Results of completed items, kept for the time that the completion has set, and waiting for them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leasequeue.durations import Duration, seconds
from leasequeue.queue.encoding import ROW_BYTES, encoded_id
from leasequeue.queue.pushes.progress import read_progress
from leasequeue.queue.pushes.result_waits import CANCELLED, KEEP_MS
from leasequeue.queue.run_logs import read_chunks
from leasequeue.queue.streams import check_cursor, chunks_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from leasequeue.queue.engine import Engine
    from leasequeue.queue.run_logs import LoggedRecord
    from leasequeue.queue.streams import Chunk


class Results:
    """The results of a queue's items: `AsyncWorkQueue.results`.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine

    async def get(self, item_id: str) -> bytes | None:
        """Return the result with which an item was completed.

        Args:
            item_id: The item's id. If it was completed several times, the last result is returned.

        Returns:
            The result; None if the item is not completed, has no result, or the result has expired.

        Raises:
            UnreadablePayload: If it was encoded by a codec or a key that this queue object has not.
        """
        return _decoded(self._engine(), await self._stored(item_id), item_id)

    async def _stored(self, item_id: str) -> bytes | None:
        found: list[bytes | None] = await self._engine().run("result", [encoded_id(item_id)])
        return found[0]

    async def _shown(self, item_id: str) -> bytes | None:
        """Return a result as `get` does; one that cannot be decoded as the server has it."""
        return self._engine().payloads.shown(await self._stored(item_id), encoded_id(item_id))

    async def progress(self, item_id: str) -> AsyncGenerator[Any, None]:
        """Yield what the holder of an item reports with `Lease.progress`, until the item ends.

            async for done in queue.results.progress("report-7"):
                print(f"{done:.0%}")

        The first value is the last one that was reported before. What is reported faster than it is taken is
        left out, but the last one. How the item has ended, `wait` says.

        Args:
            item_id: The item's id.

        Raises:
            JobUnknown: If there is neither an item of this id nor a result nor a dead letter.
        """
        async with contextlib.aclosing(self._engine().result_waits.progress(encoded_id(item_id))) as texts:
            async for text in texts:
                yield read_progress(text)

    async def stream(self, item_id: str, *, after: str | None = None) -> AsyncGenerator[Chunk[bytes], None]:
        """Yield the chunks that the holders of an item emit with `AsyncWorkQueue.emit`, until the item ends.

            async for chunk in queue.results.stream("report-7"):
                print(chunk.value)

        A reader that comes late gets all that are kept, from the first, and then the end; also after the
        item has ended, for as long as its stream is kept. The readers of one event loop share its
        connections. One that is slow keeps nothing in memory but its place. Of an item that is retried, the
        chunks of each run follow each other: see `Chunk.restarted`.

        Args:
            item_id: The item's id.
            after: The cursor of a chunk after which to begin; None: with the first.

        Raises:
            InvalidArgument: If `after` is no cursor.
            JobFailed: After the last chunk, if the item is a dead letter.
            JobCancelled: After the last chunk, if it was cancelled.
            JobExpired: If no worker had begun with it in time.
            JobUnknown: If there is neither an item of this id nor a stream, a result or a dead letter.
            UnreadablePayload: If a chunk was encoded by a codec or a key that this queue object has not.
            QueueClosed, ServerError: As in `wait`.
        """
        key, place = encoded_id(item_id), check_cursor(after)
        engine = self._engine()

        async def read(after: bytes) -> list[Any]:
            found: list[Any] = await engine.one("read_chunks", (key, b"emitted", after), size=ROW_BYTES)
            return found

        async with contextlib.aclosing(engine.result_waits.stream(key, place, read)) as pages:
            async for page in pages:
                for chunk in chunks_in(page, place):
                    yield replace(chunk, value=engine.payloads.decode(chunk.value, item_id))
                place = page[-4]

    async def is_awaited(self, item_id: str) -> bool:
        """Return whether any process waits for the end of an item, or reads its stream.

        A process that has stopped waiting for one that is unfinished may count for up to 15 s, and longer
        while others wait; this one does not.
        """
        key, engine = encoded_id(item_id), self._engine()
        if engine.result_waits.awaits(key):
            return True
        notes: bytes | None = await engine.read("await_results", "HGET", "watchers", key)
        mine = b"@" + engine.keys.session
        return any(not note.endswith(mine) for note in (notes or b"").split())

    async def logs(self, item_id: str) -> list[LoggedRecord]:
        """Return what was logged below the runs of an item, if its handler has `keep_logs`.

            for record in await queue.results.logs("report-7"):
                print(record.attempt, record.level, record.message)

        A worker writes what is logged within a second, and before the outcome of the run. It is kept as long
        as the item is unfinished or a dead letter, and then as long as its result; for an hour if its handler
        keeps no results.

        Args:
            item_id: The item's id.

        Returns:
            The records, the oldest first. Of an item that is not there, or whose handler keeps none: [].
        """
        key, after = encoded_id(item_id), b"0-0"
        chunks: list[tuple[int, bytes]] = []
        while True:
            [[_, *found]] = await self._engine().run("read_chunks", [key, b"logged", after])
            if not found:
                return read_chunks(chunks)
            rows = [found[at : at + 4] for at in range(0, len(found), 4)]
            chunks += [(int(token), chunk) for _, token, _, chunk in rows]
            after = rows[-1][0]

    async def is_cancelled(self, item_id: str) -> bool:
        """Return whether an item was cancelled, and not added again, for as long as `cancel` has said."""
        code, _ = await self._engine().run("await_results", [encoded_id(item_id)], keep_ms=KEEP_MS)
        return bool(code == CANCELLED)

    async def wait(
        self, item_id: str, timeout: Duration | None = None, *, what: str = "item"
    ) -> bytes | None:
        """Wait until an item is completed, and return its result.

        A client of Leasequeue that completes the item notifies this process; of an item that a client of
        another library has completed it learns within 5 s. All callers of one event loop share one
        connection, and wait on when it has been lost and opened again.

        Args:
            item_id: The item's id.
            timeout: The maximum to wait, in seconds; None: no limit.
            what: What the text of `TimeoutError` calls it.

        Returns:
            The result; None if the item was completed without one, or was removed.

        Raises:
            JobFailed: If it is a dead letter; `error` says why.
            JobCancelled: If it was cancelled.
            JobExpired: If no worker had begun with it in time.
            JobUnknown: If there is neither an item of this id nor a result: it was never added, or it has
                been completed without a result, or the result has expired.
            UnreadablePayload: As in `get`.
            TimeoutError: If it is still unfinished after `timeout`.
            QueueClosed, ServerError: As in `AsyncWorkQueue.counts`, if the first request fails; later ones
                are repeated after a transient error.
        """
        key = encoded_id(item_id)
        limit = None if timeout is None else seconds("timeout", timeout, zero=False)
        engine = self._engine()
        wait = engine.result_waits.begin(key)
        try:
            async with asyncio.timeout(limit):
                result = await wait
        except TimeoutError as error:
            raise TimeoutError(f"the {what} {item_id!r} is still unfinished after {limit:g} s") from error
        return _decoded(engine, result, item_id)


def _decoded(engine: Engine, result: bytes | None, item_id: str) -> bytes | None:
    return None if result is None else engine.payloads.decode(result, item_id)
