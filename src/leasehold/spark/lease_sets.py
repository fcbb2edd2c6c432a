"""A stream of leases as it is on the server: sets of items with names, leased, renewed, read, completed.

There is no Spark in here. The sets have numbers that grow. After a crash a set is found again under its
number, with those of its items that are still leased for it, and those that nobody else has taken since.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leasehold.errors import LeaseholdError, StreamTakenOver
from leasehold.log import Log
from leasehold.spark.portal import persistently

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leasehold.queue.bulk import Bulk

#: Id and token of an item.
Entry = tuple[bytes, bytes]

#: The most items of one call.
STEP = 1000
#: For how long sets and readers are remembered after their leases have ended (ms): a week.
KEEP_MS = 7 * 24 * 3600 * 1000
#: Values per item in the reply of `set_read`.
FIELDS = 7
#: Calls to bring back what is due; what is not back then can wait.
MAX_RECOVERIES = 10_000

_log = Log(__name__)


@dataclass
class LeaseSet:
    """A set of leased items."""

    #: How many places it has on the server. What was given up has a place, too.
    places: int
    #: Whether it was there already.
    found: bool
    #: How many items were leased for it when it was last renewed; None: never renewed.
    held: int | None = None


class LeaseSets:
    """The reader of a stream of leases. Nothing is done twice if a call is repeated.

    Args:
        bulk: The queue.
        name: The stream's name, which its checkpoint knows.
        lease_ms: For how long items are leased; they are renewed every third of it.
        retry_timeout: For how many seconds a call is repeated while the server is away.
    """

    def __init__(self, bulk: Bulk, name: str, *, lease_ms: int, retry_timeout: float) -> None:
        self.reader = secrets.token_hex(8)
        self._bulk = bulk
        self._name = name
        self._lease_ms = lease_ms
        self._retry_timeout = retry_timeout
        self._sets: dict[int, LeaseSet] = {}
        self._completed = 0

    async def take_over(self) -> None:
        """Become the reader. Another one gets StreamTakenOver at its next call.

        Raises:
            ServerError: If the server stays away.
        """
        await self._hold(take=1)

    async def waiting(self) -> int:
        """Bring back what is due, and count the items that wait.

        Raises:
            StreamTakenOver, ServerError: As all calls.
        """
        more, waiting, calls = True, 0, 0
        while more and calls < MAX_RECOVERIES:
            _, _, more, waiting = await self._lease(0, known=0, count=0)
            calls += 1
        return waiting

    async def lease(self, number: int, count: int) -> LeaseSet:
        """Lease up to `count` items as the set of that number; or find the set, if it is there.

        Raises:
            StreamTakenOver, ServerError: As all calls.
        """
        known = 0
        while True:
            had, size, more, _ = await self._lease(number, known=known, count=min(count - known, STEP))
            found = known == 0 and had > 0
            if found or size >= count or not more:
                break
            known = size
        leased = LeaseSet(size, found)
        if found:
            await self._renew(number, leased)
        if size:
            self._sets[number] = leased
        return leased

    async def again(self, number: int) -> LeaseSet:
        """Give the set of that number, also after a crash: what waits again is leased again into its place.

        What others hold or have completed meanwhile is given up when it is read.

        Raises:
            StreamTakenOver, ServerError: As all calls.
        """
        if number not in self._sets:
            # Renewed before anything else, which would bring back what has expired.
            leased = LeaseSet(0, found=True)
            if lost := await self._renew(number, leased):
                _log.warning(
                    "%d items of batch %d were taken by others while the query was down, and are left out",
                    *(lost, number),
                )
            self._sets[number] = leased
            await self._hold()
        return self._sets[number]

    async def complete(self, number: int) -> None:
        """Complete the items of that set, and drop it; but for those that were given up when it was read.

        The others have been read, so they are done although their leases may be over.

        Raises:
            StreamTakenOver, ServerError: As all calls.
        """
        if number <= self._completed:
            return
        _, entries = await self._look(number)
        pages = (entries[at : at + STEP] for at in range(0, len(entries), STEP))
        await asyncio.gather(*map(self._complete, pages))
        await self._hold(drop=number)
        self._sets.pop(number, None)
        self._completed = number

    async def _complete(self, entries: Sequence[Entry]) -> None:
        rows = [value for id_, token in entries for value in (id_, token, b"0")]
        mine, *answers = await self._run("set_complete", rows, stream=self._bytes, reader=self._reader)
        self._check(mine)
        if lost := answers.count(-1):
            _log.warning("%d items were completed by others, and added again, while they were read", lost)

    async def keep(self) -> None:
        """Renew what is leased, every third of the lease time, until cancelled or taken over."""
        pause = self._lease_ms / 3000
        while True:
            await asyncio.sleep(pause)
            try:
                for number, leased in [*self._sets.items()]:
                    await self._renew(number, leased)
                await self._hold()
            except StreamTakenOver:
                return  # the next call says so
            except LeaseholdError as error:
                _log.warning("leases could not be renewed: %s", error)
            except Exception:  # noqa: BLE001 - whatever it is, the next round may go well
                # Nobody looks at what this task ends with, and without it all leases would expire.
                _log.exception("leases could not be renewed")

    async def _renew(self, number: int, leased: LeaseSet) -> int:
        """Renew what is leased for a set, and lease again what waits; says how many others have taken."""
        name = self.place(number)
        leased.places, held, again, lost = await renew_set(self._bulk, name, 0, 0, self._retry_timeout)
        # From its end, as items come back in their order: what is nearest to the end of the queue goes first.
        for start in reversed(range(0, leased.places, STEP)):
            _, *more = await renew_set(self._bulk, name, start, STEP, self._retry_timeout)
            held, again, lost = held + more[0], again + more[1], lost + more[2]
        leased.held = held
        if again:
            _log.info("%d items of batch %d were leased again, as they waited again", again, number)
        return lost

    async def _look(self, number: int) -> tuple[int, list[Entry]]:
        """How many places a set has, and what was not given up of it."""
        places, seen = 0, 1
        entries: list[Entry] = []
        while seen:
            seen, _, flat = await read_set(
                *(self._bulk, self.place(number)),
                start=places,
                count=STEP,
                max_bytes=-1,
                retry_timeout=self._retry_timeout,
                peek=True,
            )
            entries += zip(flat[::2], map(b"%d".__mod__, flat[1::2]), strict=True)
            places += seen
        return places, entries

    async def _lease(self, number: int, *, known: int, count: int) -> tuple[int, int, bool, int]:
        mine, had, size, more, waiting = await self._run(
            "lease_set",
            session=self.place(number).holder.encode(),
            stream=self._bytes,
            reader=self._reader,
            set=self.place(number).set,
            known=known,
            count=count,
            hold_ms=self._lease_ms,
            keep_ms=self._lease_ms + KEEP_MS,
        )
        self._check(mine)
        return had, size, more == 1, waiting

    async def _hold(self, *, take: int = 0, drop: int | None = None) -> None:
        keep_ms = self._lease_ms + KEEP_MS
        sets = dict.fromkeys(self._sets, b"%d" % keep_ms)
        if drop is not None:
            sets[drop] = b"0"
        rows = [value for number, ms in sets.items() for value in (self.place(number).set, ms)]
        mine, _ = await self._run(
            "stream_hold", rows, stream=self._bytes, reader=self._reader, take=take, keep_ms=keep_ms
        )
        self._check(mine)

    def place(self, number: int) -> SetId:
        """How the set of that number is read."""
        return SetId(self._name, self.reader, number, self._lease_ms)

    @property
    def _bytes(self) -> bytes:
        return self._name.encode()

    @property
    def _reader(self) -> bytes:
        return self.reader.encode()

    def _check(self, mine: int) -> None:
        if not mine:
            raise StreamTakenOver(self._name)

    async def _run(self, script: str, rest: Sequence[bytes] = (), **arguments: bytes | int) -> Any:
        return await persistently(partial(self._bulk.run, script, rest, **arguments), self._retry_timeout)


@dataclass(frozen=True)
class SetId:
    """What an executor needs to know of a set to read it."""

    stream: str
    reader: str
    number: int
    lease_ms: int

    @property
    def set(self) -> bytes:
        """Its name on the server."""
        return f"{self.stream}:{self.number}".encode()

    @property
    def holder(self) -> str:
        """Who has leased its items."""
        return f"lh:{self.stream}"


async def read_set(
    bulk: Bulk,
    name: SetId,
    *,
    start: int,
    count: int,
    max_bytes: int,
    retry_timeout: float,
    peek: bool = False,
) -> tuple[int, int, list[Any]]:
    """Read some places of a set: what is leased for it. What waits again is leased again before.

    What others hold or have completed is given up for good.

    Args:
        bulk: The queue.
        name: The set.
        start: The first place.
        count: How many at most, up to 1,000.
        max_bytes: How much data at most, but for a single item; -1: none.
        retry_timeout: For how many seconds a call is repeated while the server is away.
        peek: Whether to give id and token of all that was not given up, and to give up nothing.

    Returns:
        How many places were looked at (0: the set ends before), the server's time in ms, and seven values per
        item, as `set_read` gives them.

    Raises:
        StreamTakenOver: If another reader has taken over.
        ServerError: If the server stays away.
    """

    async def read(give_up: int) -> list[Any]:
        wanted = {
            "start": start,
            "count": count,
            "max_bytes": max_bytes,
            "peek": int(peek),
            "give_up": give_up,
        }
        return await _of_set(bulk, "set_read", name, retry_timeout, {**wanted})

    seen, now_ms, *flat = await read(0)
    if seen < 0:
        await renew_set(bulk, name, start, count, retry_timeout)
        seen, now_ms, *flat = await read(1)
    return seen, now_ms, flat


async def renew_set(bulk: Bulk, name: SetId, start: int, count: int, retry_timeout: float) -> list[int]:
    """Renew what is leased of some places of a set, and lease again what waits.

    Args:
        bulk: The queue.
        name: The set.
        start: The first place.
        count: How many at most, up to 1,000.
        retry_timeout: For how many seconds the call is repeated while the server is away.

    Returns:
        How many places the whole set has; how many of those looked at are held now; how many of them were
        leased again; how many are held no more.

    Raises:
        StreamTakenOver: If another reader has taken over.
        ServerError: If the server stays away.
    """
    times = {"start": start, "count": count, "hold_ms": name.lease_ms}
    return await _of_set(bulk, "set_renew", name, retry_timeout, {"session": name.holder.encode(), **times})


async def _of_set(
    bulk: Bulk, script: str, name: SetId, retry_timeout: float, more: dict[str, bytes | int]
) -> list[Any]:
    """Run a script on a set: its reply, if the reader is still this one."""
    given = {"stream": name.stream.encode(), "reader": name.reader.encode(), "set": name.set} | more
    mine: int
    reply: list[Any]
    mine, *reply = await persistently(partial(bulk.run, script, (), **given), retry_timeout)
    if not mine:
        raise StreamTakenOver(name.stream)
    return reply
