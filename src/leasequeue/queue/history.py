"""The history of a queue: what happened in each minute, hour and day, counted by the scripts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

from leasequeue.durations import check_int
from leasequeue.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

    from leasequeue.queue.engine import Engine

Tier: TypeAlias = Literal["minute", "hour", "day"]

#: For how many cells of each tier the numbers are kept at least.
KEPT: dict[str, int] = {"minute": 2880, "hour": 744, "day": 366}
#: The bytes of a number in a cell, and the numbers of a cell: see `history_read`.
_BYTES, _SLOTS = 5, 20


@dataclass(frozen=True, kw_only=True)
class HistoryCell:
    """What happened in a queue in one minute, hour or day, by UTC and the server's clock."""

    #: The upper bounds of the first six numbers of `runs` and `waits`, in seconds; the seventh has none.
    BOUNDS: ClassVar[tuple[float, ...]] = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)

    #: When it began, in seconds since 1970.
    start: float
    #: For how long it lasts, in seconds.
    seconds: float
    #: Whether it is over. The last one of a history is not.
    over: bool
    #: How many items were added.
    added: int
    #: How many items were completed.
    completed: int
    #: How many attempts failed, also those after which the item became a dead letter.
    failed: int
    #: How many items became dead letters.
    dead: int
    #: How many leases ended without an outcome: they expired, or their worker was dead.
    expired: int
    #: How many of the attempts that were completed or failed took so long, from the lease to the end.
    runs: tuple[int, ...]
    #: How long items waited that calls of `AsyncWorkQueue.stats` have sampled, as in `WaitTimes`: how many so
    #: long.
    waits: tuple[int, ...]
    #: For how many seconds the oldest waiting item had waited at most, of what these calls found; 0 if none
    #: waited, or there was no call.
    oldest_age: float


@dataclass(frozen=True, kw_only=True)
class QueueHistory:
    """The last minutes, hours or days of a queue."""

    #: The queue's name.
    queue: str
    #: Whether history is kept now.
    kept: bool
    #: When this was read, by the server's clock, in seconds since 1970.
    at: float
    #: The oldest first, without a gap. All numbers are 0 where none was kept.
    cells: tuple[HistoryCell, ...]


class History:
    """The history of a queue: `AsyncWorkQueue.history`.

        await queue.history.keep()
        for cell in (await queue.history("hour", count=24)).cells:
            print(cell.start, cell.completed, cell.failed)

    While it is kept, the scripts that change items count, whichever process calls them: what was accepted was
    counted, and a process that dies loses nothing. Items that clients of another library complete are not
    counted. How long items wait is seen by callers of `AsyncWorkQueue.stats`, as dashboards are; a worker
    that cleans its queues looks every 10 s, unless another client has.

    A number of a cell takes 5 bytes. Each minute is kept for 2 days, each hour for 31 days and each day for
    366 days, so a queue that is always busy takes at most 450,000 bytes of the server, and one in which
    nothing happens none.

    Every call raises InvalidArgument, QueueClosed and ServerError as those of `AsyncWorkQueue` do.
    """

    def __init__(self, engine: Callable[[], Engine], name: str) -> None:
        self._engine = engine
        self._name = name

    async def keep(self) -> None:
        """Keep history of this queue from now on, for all processes, until `stop` is called."""
        await self._set(1)

    async def stop(self) -> None:
        """Count nothing more. What was counted can be read until it expires."""
        await self._set(0)

    async def _set(self, rollup: int) -> None:
        await self._engine().run("events_keep", count=b"", age_ms=b"", publish=b"", secret=b"", rollup=rollup)

    async def __call__(self, tier: Tier = "minute", *, count: int = 60) -> QueueHistory:
        """Read the last minutes, hours or days, up to the current one.

        Args:
            tier: `"minute"`, `"hour"` or `"day"`.
            count: How many, with the current one: at most 2,880 minutes, 744 hours or 366 days.
        """
        if tier not in KEPT:
            raise InvalidArgument("tier", tier, f"one of {', '.join(get_args(Tier))}")
        check_int("count", count, minimum=1, maximum=KEPT[tier])
        now_ms, cell_ms, kept, text = await self._engine().run(
            "history_read", which=tier.encode(), cells=count
        )
        first, size = now_ms // cell_ms - count + 1, _BYTES * _SLOTS
        return QueueHistory(
            queue=self._name,
            kept=kept == 1,
            at=now_ms / 1000,
            cells=tuple(
                _cell(text[size * at : size * (at + 1)], first + at, cell_ms / 1000, over=at + 1 < count)
                for at in range(count)
            ),
        )

    async def _sample(self, every: float) -> bool:
        """Note how long items wait, unless a client has within `every` seconds; return whether it is kept."""
        every_ms = round(every * 1000)
        return bool(await self._engine().run("sample_queue", horizon_ms=b"", note=1, every_ms=every_ms))


def _cell(text: bytes, number: int, seconds: float, *, over: bool) -> HistoryCell:
    numbers = [int.from_bytes(text[at : at + _BYTES], "big") for at in range(0, len(text), _BYTES)]
    added, completed, failed, dead, expired = numbers[:5]
    return HistoryCell(
        start=number * seconds,
        seconds=seconds,
        over=over,
        added=added,
        completed=completed,
        failed=failed,
        dead=dead,
        expired=expired,
        runs=tuple(numbers[5:12]),
        waits=tuple(numbers[12:19]),
        oldest_age=numbers[19] / 1000,
    )
