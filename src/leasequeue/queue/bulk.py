"""Calls that take encoded rows of bytes, for `leasequeue.spark`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leasequeue.queue.encoding import MAX_REPLY_BYTES, SLOW_ROWS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

#: The maximum number of rows of one call.
MAX_ROWS = 500
#: How many ids the first and each further step of a listing returns.
FIRST_PAGE, PAGE = 1000, 4000
#: What `list_ids` lists, each with its key.
_LISTS = {"waiting": "queue", "processing": "processing"}
_SETS = {"leased": "deadlines", "scheduled": "scheduled", "dead": "dead"}
#: How long the ids that a run of a job has added are kept, unless it ends (ms): a week.
KEEP_RUN_MS = 7 * 24 * 3600 * 1000
#: How long after its start a run is found by the job's name (ms). Longer than its ids are kept, which each
#: addition prolongs; a name that outlives them finds a run without ids.
KEEP_NAME_MS = 5 * KEEP_RUN_MS
#: The answer of `requeue_many` for the last ids, if they did not fit into its call.
_NO_ROOM = -2


class Bulk:
    """The calls of a queue that take rows which are already checked and encoded.

    Calls are not batched: each is a trip. Several may be in flight at once. Every call raises QueueClosed and
    ServerError as `AsyncWorkQueue.counts` does.
    """

    def __init__(self, run: Callable[..., Awaitable[Any]], read: Callable[..., Awaitable[Any]]) -> None:
        self._run = run
        self._read_key = read

    async def run(self, script: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        """Run a script, with its arguments by name."""
        return await self._run(script, rest, **arguments)

    async def open_run(self, job: bytes, new: bytes) -> bytes:
        """Return the open run of a job or, if none is open, open a new one."""
        run: bytes = await self.run("once_run", job=job, run=new, keep_ms=KEEP_NAME_MS)
        return run

    async def add_once(self, run: bytes, rows: Sequence[bytes]) -> list[int]:
        """Add items, each once per run, however often this is called: repeating a lost call is safe.

        Args:
            run: The run of the job.
            rows: For each item id, data, delay (ms, or `@` and ms since 1970) and what `adding` returns; at
                most 500 items, and 1 MiB unless it is one item.

        Returns:
            For each item 1: added; 0: its id is taken; 2: this run has added it before, or has ended.
        """
        answers: list[int] = await self.run("add_once", rows, run=run, keep_ms=KEEP_RUN_MS)
        return answers

    async def end_run(
        self, run: bytes, *, ended_ms: int, job: bytes = b"", report: bytes = b"", keep_ms: int = 0
    ) -> int:
        """End a run: its remaining tasks add nothing, and its job's name is free again.

        Args:
            run: The run.
            ended_ms: How long the server remembers that it has ended.
            job: The job's name, under which the report is kept.
            report: Follows the number of items in the result. Repeating is safe if it is unique.
            keep_ms: How long the result is kept; 0: there is none.

        Returns:
            How many items it has added; -1: it has already ended with another report.
        """
        added: int = await self.run(
            "once_drop", run=run, job=job, report=report, ended_ms=ended_ms, keep_ms=keep_ms
        )
        return added

    async def find(self, ids: Sequence[bytes], *, which: str, max_bytes: int) -> list[Any]:
        """Return the reply of `find_many` for up to 500 ids.

        `which` says what to find: `living` are the items, `dead` the dead letters, `all` both.
        """
        reply: list[Any] = await self.run("find_many", ids, which=which.encode(), max_bytes=max_bytes)
        return reply

    async def requeue(self, ids: Sequence[bytes]) -> list[int]:
        """Requeue dead letters at the end of the queue.

        Returns:
            For each id 1: requeued; 0: there is no such dead letter; -1: it stays, because an item with its
            id has been added since.
        """
        answers: list[int] = []
        while some := ids[len(answers) : len(answers) + SLOW_ROWS]:
            reply = await self.run("requeue_many", some, max_bytes=MAX_REPLY_BYTES)
            answers += [answer for answer in reply if answer != _NO_ROOM]
        return answers

    async def was_used(self) -> bool:
        """Return whether any item of the queue was ever leased."""
        _, used, *_ = await self.run("list_ids", state=b"dead", cursor=b"0", count=1)
        return bool(used)

    async def pages(self, state: str) -> AsyncIterator[list[bytes]]:
        """List the ids of all items of one state, page by page.

        Items that are in that state during the whole listing are on some page; others may be, and an id may
        come twice.
        """
        if state == "waiting":
            async for page in self._waiting():
                yield page
            return
        async for page in self._pages(state):
            yield page

    async def _waiting(self) -> AsyncIterator[list[bytes]]:
        """List what waits: in the lanes of a controlled queue, and in the queue, between which ids move.

        In a controlled queue, and if it has begun or ceased to be one, all is listed once more.
        """
        for is_last in (False, True):
            controlled = False
            async for is_controlled, page in self._laned():
                controlled = controlled or is_controlled
                yield page
            async for page in self._pages("waiting"):
                yield page
            if is_last:
                return
            async for is_controlled, _ in self._laned(1):
                controlled = controlled or is_controlled
            if not controlled:
                return

    async def _laned(self, steps: int = 1 << 30) -> AsyncIterator[tuple[bool, list[bytes]]]:
        """List what waits in lanes; say on each page whether the queue is controlled."""
        cursor = b""
        while cursor != b"0" and steps > 0:
            steps -= 1
            cursor, controlled, *page = await self.run(
                "list_ids", state=b"laned", cursor=cursor or b"0", count=FIRST_PAGE
            )
            yield bool(controlled), page

    async def _pages(self, state: str) -> AsyncIterator[list[bytes]]:
        cursor, _, *first = await self.run("list_ids", state=state.encode(), cursor=b"0", count=FIRST_PAGE)
        yield first
        if cursor == b"0":
            return
        others = (
            self._slices(_LISTS[state], frozenset(first))
            if state in _LISTS
            else self._scan(_SETS[state], cursor)
        )
        async for page in others:
            yield page

    async def _slices(self, key: str, before: frozenset[bytes]) -> AsyncIterator[list[bytes]]:
        """List what follows the first page of a list.

        Each slice begins with the last id of the one before, unless the list changes. If they have no id in
        common, ids before the slice may have left the list, and others moved up past it: then it is read
        again from further up.
        """
        start, checked = FIRST_PAGE - 1, 0
        while True:
            page: list[bytes] = await self._read("LRANGE", key, start, start + PAGE - 1)
            if before.isdisjoint(page) and start > checked:
                checked, start = start, max(0, start - PAGE)
                continue
            yield page
            if len(page) < PAGE:
                return
            start, before = start + PAGE - 1, frozenset(page)

    async def _scan(self, key: str, cursor: bytes) -> AsyncIterator[list[bytes]]:
        """List what follows the first page of a sorted set."""
        while cursor != b"0":
            cursor, page = await self._read("ZSCAN", key, cursor, b"COUNT", PAGE)
            yield page[::2]

    async def _read(self, command: str, key: str, *arguments: bytes | int) -> Any:
        return await self._read_key("list_ids", command, key, *arguments)
